"""The codec ``bfp`` as hardware: a block waits for its exponent, and mantissas are found ahead of it."""
