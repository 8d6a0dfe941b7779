"""Federated averaging as Flower's quickstart has it."""
