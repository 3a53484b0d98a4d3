"""Virtual time: delays, the choice of clients, and the schedules that decide which update arrives next."""
