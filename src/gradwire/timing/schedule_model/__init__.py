"""The steps of a schedule, summed, or simulated on a network that needn't be uniform."""
