"""Benchmarks of all-reduces, compared with torch's all-reduce and with theory."""
