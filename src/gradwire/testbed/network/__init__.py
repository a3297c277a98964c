"""The network of a testbed: its topology, and its setup."""
