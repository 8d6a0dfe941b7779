"""Federated averaging as in Flower's quickstart."""
