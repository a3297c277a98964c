"""The network of a testbed: its topology, and how it is made."""
