"""Several runs: the cells of a comparison, groups of seeds, tests."""
