"""The costs of exchanges and the errors of encoding, counted by bucket and step, and reported."""
