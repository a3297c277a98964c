"""Replicas: the state that all ranks share, compared between them, and sent from rank 0."""
