"""Attach gradwire to the models of an unmodified training script, and measure the gain: ``gradwire run``.

The modules ``session``, ``models``, and ``methods`` run in the script's processes, where ``gradwire.script``
calls them. The module ``run`` starts the script, and reports the ``outcome`` that rank 0 has written.
"""
