"""A run: its parts, its loop, its folder and its checkpoint."""
