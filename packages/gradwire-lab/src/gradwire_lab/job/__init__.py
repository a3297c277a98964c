"""The training job behind ``gradwire train``: data, models, worker processes, records, tables, and plots.

``job`` runs a whole job, ``launch`` starts its processes and shows their progress, ``train_loop`` runs in
each process, ``record`` defines results, and ``report`` prints the table and draws the plot.
"""
