"""How many steps a plan needs to a loss: what it adds to gradients' noise, and what that has cost runs."""
