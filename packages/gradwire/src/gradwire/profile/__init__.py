"""Observe an unchanged training script, and estimate its step time with gradwire: ``gradwire profile``.

The modules ``ddp``, ``inside``, ``session``, and ``attempt`` run in the script's processes.
"""
