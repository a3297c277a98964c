"""Benchmarks of all-reduces, compared with torch's own and with the theory."""
