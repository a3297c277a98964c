"""``quantize`` as hardware: payloads with a scale for each block, before all codes."""
