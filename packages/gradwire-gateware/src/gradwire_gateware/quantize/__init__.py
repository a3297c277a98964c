"""``quantize`` as hardware: a scale for each block, which stands before all codes."""
