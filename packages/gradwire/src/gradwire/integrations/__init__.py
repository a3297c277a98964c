"""gradwire in the training loops of other frameworks; each module imports the package that it is named after.

The modules are ``lightning``, ``pytorch_lightning``, ``accelerate``, and ``transformers``. This package
imports none of them, because gradwire itself doesn't need these frameworks.
"""
