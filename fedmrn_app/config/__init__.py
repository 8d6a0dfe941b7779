"""The configuration: its types, how it is composed, and the objects that are built from it."""
