"""Memory and files of numbers: arriving updates, vectors, the rows that are cached for clients, and their devices."""
