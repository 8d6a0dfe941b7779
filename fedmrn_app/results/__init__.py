"""What a run leaves behind: its folder, its rows, its curves, and tables of them."""
