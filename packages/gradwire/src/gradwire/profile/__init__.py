"""Observe an unchanged training script, and estimate its step time with gradwire: ``gradwire profile``.

``session`` and ``ddp`` run in the script's processes, where ``gradwire.script`` calls them.
"""
