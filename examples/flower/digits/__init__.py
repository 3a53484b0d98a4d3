"""A Flower app with fastagg on the server. The clients are plain Flower clients."""
