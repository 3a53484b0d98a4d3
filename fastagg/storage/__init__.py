"""Memory, files and devices: arriving updates, vectors, cached rows of clients, and operations on files."""
