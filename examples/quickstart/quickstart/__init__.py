"""A Flower app whose clients upload less than a bit per weight."""
