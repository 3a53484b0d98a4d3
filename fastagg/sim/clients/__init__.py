"""What a client does: local training by torch or by the extension, and functions of a researcher's own."""
