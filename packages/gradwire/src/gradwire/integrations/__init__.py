"""Integrations into other frameworks' training loops. Each module imports the package with its name.

The modules are ``lightning``, ``pytorch_lightning``, ``accelerate``, and ``transformers``. This package
imports none of them, because gradwire itself doesn't need these frameworks.
"""
