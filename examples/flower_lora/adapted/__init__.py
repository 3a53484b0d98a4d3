"""LoRA in Flower on fastagg: clients train adapters of their own rank, and nothing else travels up."""
