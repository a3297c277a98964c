"""What runs on the hosts of a testbed, and how its rows come back."""
