"""Measure codecs and frames on this machine, and the line between two ranks."""
