"""The steps of a schedule, summed or simulated on a network that need not be uniform."""
