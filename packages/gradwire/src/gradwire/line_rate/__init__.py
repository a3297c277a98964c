"""The line between two ranks: latency and rates, measured over the link that training uses."""
