"""The data of runs, divided among clients. ``federated`` has the class of this data, ``digits`` and ``own`` load it."""
