"""What tests share: models, presets, and what stands in for disks, clients and frameworks."""
