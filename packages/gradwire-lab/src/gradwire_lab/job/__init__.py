"""The training job behind ``gradwire train``: data, models, worker processes, records, tables, and plots."""
