"""Sharded training: each rank steps its shard of the weights and tells the others what changed."""
