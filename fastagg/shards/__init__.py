"""One server on several processes. Each holds a slice of the model, and all make the same decisions."""
