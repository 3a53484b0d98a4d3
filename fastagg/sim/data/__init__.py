"""The clients' data: its class (``federated``), functions that load it (``digits``, ``own``), keys (``sections``)."""
