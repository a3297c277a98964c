"""gradwire in other people's training loops; each module imports the package that it is called after.

``gradwire.integrations.lightning`` and ``.pytorch_lightning``, ``.accelerate``, ``.transformers``. Nothing is
imported here: gradwire itself needs none of these packages.
"""
