"""Loggers send a run's rows, configuration and curves to a library for watching runs.

To add a logger, write `to_NAME.py` here with a class `RunLogger`, and `conf/log/NAME.yaml` with its settings; NAME is
the library's import name.
"""
