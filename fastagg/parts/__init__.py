"""What an algorithm is made of: a direction, an optimizer and a staleness policy."""
