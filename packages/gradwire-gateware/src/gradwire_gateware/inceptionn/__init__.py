"""The codec ``inceptionn`` as hardware: payloads of groups of eight values without gaps."""
