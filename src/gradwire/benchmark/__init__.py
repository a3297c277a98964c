"""Measure what the network and the exchange really do: line rate, all-reduce."""
