"""Where numbers lie: updates as they came, vectors, rows of clients, and the devices that hold them."""
