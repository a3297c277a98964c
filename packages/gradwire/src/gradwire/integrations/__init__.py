"""Integrations into training frameworks. Each module imports the framework of the same name."""
