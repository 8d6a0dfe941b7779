"""The shipped models, one file per family; `build.py` builds these and any others."""
