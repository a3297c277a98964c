"""What a rank that waits for others has told in their store."""

from __future__ import annotations

from torch._C._distributed_c10d import HashStore


def place(store: HashStore, rank: int) -> tuple[tuple[str, int], bytes]:
    """Return where a rank listens, and its word, once it does."""
    address, port, word, _ = store.get(f"rank {rank}").decode().split()
    return (address, int(port)), bytes.fromhex(word)
