"""Choose a plan by what is expected of it, and try the closest ones."""
