"""One server on several processes: each holds a slice of the model, and all decide together."""
