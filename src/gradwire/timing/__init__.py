"""What an exchange should cost: formulas, a walk over the steps, and simulations."""
