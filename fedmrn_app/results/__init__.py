"""The files that a run writes: its folder, rows, curves and state."""
