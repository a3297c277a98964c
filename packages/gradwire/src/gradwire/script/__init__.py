"""Run an unmodified training script, and call gradwire in its processes.

``gradwire profile`` and ``gradwire run`` use this package. ``command`` starts the script. In each process of
the script, ``entry`` passes the script's models to an observer, and ``lifeline`` ends the process when the
command ends. ``steps`` provides clocks that time training steps.
"""
