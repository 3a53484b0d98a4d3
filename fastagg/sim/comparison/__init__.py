"""Comparisons of several runs: their cells, groups of seeds, and statistical tests."""
