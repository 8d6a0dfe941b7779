"""A Flower app whose clients train with Lightning."""
