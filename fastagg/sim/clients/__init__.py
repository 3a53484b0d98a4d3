"""The work of clients: training by torch or the compiled extension, attacks, encodings, and the user's functions."""
