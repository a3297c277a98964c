"""Training methods whose step waits for its own gradient, and what all methods have in common."""
