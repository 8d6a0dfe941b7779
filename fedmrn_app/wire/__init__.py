"""Plain bytes: what a client sends, how it is packed, and how it is checked. No Flower in here."""
