"""A Flower app of JAX whose clients upload a few bits per weight; PyTorch is not needed."""
