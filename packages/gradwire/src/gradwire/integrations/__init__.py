"""Integrations into other frameworks' training loops. Each module imports the framework of the same name.

The modules are ``lightning``, ``pytorch_lightning``, ``accelerate``, and ``transformers``. This package
imports none of these modules, because gradwire itself doesn't need the frameworks.
"""
