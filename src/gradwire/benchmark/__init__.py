"""What ``gradwire bench`` measures: the line between two ranks, and all-reduces over it.

``line_rate`` and ``allreduce`` are the measuring code, for Python too; ``line_rate_run`` and
``allreduce_run`` do it with all ranks and keep the records; ``ranks``, ``record``, ``display``, ``table`` and
``picture`` are what the two share.
"""
