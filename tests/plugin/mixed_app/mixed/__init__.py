"""An app for the tests: clients with and without the plug-in."""
