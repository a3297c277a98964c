"""Candidate plans, their predicted times, and the choice among them."""
