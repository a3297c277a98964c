"""The training job behind ``gradwire train``: data, models, worker processes, records, tables and plots.

``launch`` starts the processes and watches them, ``worker`` is what each of them does for a list of runs,
``events`` are the words in which workers report, ``display``, ``report``, ``record`` and ``plot`` are what
the user sees.
"""
