"""Replicas: the state that all ranks share, compared between the ranks, and sent from rank 0."""
