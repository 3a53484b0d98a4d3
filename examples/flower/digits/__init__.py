"""A Flower app on fastagg: the clients are plain Flower."""
