"""Plain PyTorch: models, flat views of their parameters, local SGD and evaluation."""
