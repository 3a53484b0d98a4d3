"""The server: what goes out, what comes back, and what is written down."""
