"""The folder that ``gradwire profile`` puts on ``PYTHONPATH``."""
