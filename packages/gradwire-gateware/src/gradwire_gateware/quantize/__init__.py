"""The codec ``quantize`` as hardware: payloads with all blocks' scales, followed by all codes."""
