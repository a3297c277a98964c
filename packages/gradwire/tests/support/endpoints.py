"""What a rank that waits for others has published in their store."""

from __future__ import annotations

from torch._C._distributed_c10d import HashStore


def endpoint(store: HashStore, rank: int) -> tuple[tuple[str, int], bytes]:
    """Return where a rank listens, and its token, once it does."""
    address, port, token, _ = store.get(f"rank {rank}").decode().split()
    return (address, int(port)), bytes.fromhex(token)


def names(world: int) -> list[str]:
    """Return what errors call the ranks."""
    return [f"rank {rank}" for rank in range(world)]
