"""Training methods' gradients in one flat buffer: its buckets, backward pass, and update of the weights."""
