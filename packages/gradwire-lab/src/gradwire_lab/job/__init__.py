"""The training job behind ``gradwire train``: data, models, worker processes, records, tables and plots.

``job`` performs a whole job, ``launch`` starts its processes and shows their progress, ``train_loop`` is the
work of each of them, ``record`` has their results, and ``report`` the table and the picture.
"""
