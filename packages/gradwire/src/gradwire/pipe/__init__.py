"""Pipe-SGD: pipelined training, corrections of stale gradients, and checkpoints of gradients in flight."""
