"""Who holds which samples. ``federated`` is what a run trains on; one file per data set loads it."""
