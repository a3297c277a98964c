"""All-reduces, measured beside torch's own and beside the theory."""
