"""A Flower app whose clients only move numbers."""
