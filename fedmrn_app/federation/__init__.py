"""A round without Flower: the client's half, the server's half, and the upload between them."""
