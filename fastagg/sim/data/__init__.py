"""The data sets: which client has which samples. ``federated`` is what a run trains on; one file loads each data
set."""
