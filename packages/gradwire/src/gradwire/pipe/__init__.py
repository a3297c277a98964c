"""Pipe-SGD: its steps, what corrects their staleness, and its checkpoints."""
