"""LoRA in Flower with fastagg. Clients train adapters of their own rank and send nothing else."""
