"""One pass over memory where PyTorch's operations would take several; each beside the plain form it equals."""
