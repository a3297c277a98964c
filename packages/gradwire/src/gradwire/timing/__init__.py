"""The predicted cost of an exchange: measured lines, hosts and codecs, a replay, and a simulation."""
