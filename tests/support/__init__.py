"""What tests share: models, presets, oracles, and what stands in for disks, clients and frameworks."""
