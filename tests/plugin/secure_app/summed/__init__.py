"""An app for the tests: the same training with and without secure sums."""
