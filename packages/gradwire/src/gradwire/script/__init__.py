"""Run an unmodified training script, and call gradwire in its processes.

``gradwire profile`` and ``gradwire run`` use this package. ``command`` starts the script. In each of its
processes, ``entry`` passes the script's models to an observer, and ``lifeline`` ends the process together
with the command. ``steps`` provides clocks for the times of training steps.
"""
