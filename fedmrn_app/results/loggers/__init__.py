"""A run's rows, configuration and curves to a library that people watch runs with; one file per library."""
