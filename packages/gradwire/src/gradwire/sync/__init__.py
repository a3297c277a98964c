"""The thread that exchanges gradients while others are computed."""
