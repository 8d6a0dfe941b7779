"""A Flower app of scikit-learn whose clients upload a few bits per weight; PyTorch is not needed."""
