"""Latency and rates between two ranks, measured over the link that training uses."""
