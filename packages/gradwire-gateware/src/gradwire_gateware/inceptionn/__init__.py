"""The codec ``inceptionn`` as hardware: groups of eight values, which follow each other without gaps."""
