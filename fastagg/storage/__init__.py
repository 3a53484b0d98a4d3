"""The memory that holds numbers: updates as they arrive, vectors, clients' rows, and the devices."""
