"""The costs of exchanges and the encoding errors, counted by bucket and step, and reported."""
