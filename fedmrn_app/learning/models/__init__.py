"""The models that are shipped: one file per family. `build.py` builds these and any others."""
