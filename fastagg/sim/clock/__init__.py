"""Who trains when: virtual time, delays, participation, and the schedules made of them."""
