"""A Flower app that fine-tunes a transformer by LoRA; only the adapters travel."""
