"""The execution of a run, with its parts, its loop, its folder and its checkpoint."""
