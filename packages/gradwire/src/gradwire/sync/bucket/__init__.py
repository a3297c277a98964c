"""One bucket's exchange: its work, its residuals, its encoding errors, and its observers."""
