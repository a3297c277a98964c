"""Attach to the models of an unmodified training script, and measure the gain: ``gradwire run``.

``session``, ``models``, and ``methods`` run in the script's processes, where ``gradwire.script`` calls them.
``run`` starts the script, and reports what rank 0 has left in ``outcome``.
"""
