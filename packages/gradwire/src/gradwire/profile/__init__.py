"""Watch a training script from outside, and estimate what gradwire would give it: ``gradwire profile``.

The modules with names of torch's (``ddp``, ``fsdp``) and ``session`` run in the script's processes.
"""
