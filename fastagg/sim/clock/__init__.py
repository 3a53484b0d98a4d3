"""Who trains when: virtual time, delays, devices, participation, and the schedules made of them."""
