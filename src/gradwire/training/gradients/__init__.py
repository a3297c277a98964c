"""A model's gradients: one flat buffer, its buckets, its residuals, and which parameters were reached."""
