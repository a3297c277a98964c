"""What exchanges lose of gradients, and how much of it the contract allows."""
