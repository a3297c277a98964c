"""Predict the cost of an exchange from measured links, hosts, and codecs, by replay or simulation."""
