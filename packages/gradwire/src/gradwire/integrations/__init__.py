"""Integrations into training frameworks. Each module imports the framework of the same name.

The modules are ``lightning``, ``pytorch_lightning``, ``accelerate``, and ``transformers``. The package
doesn't import them itself, because gradwire works without these frameworks.
"""
