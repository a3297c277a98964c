"""What an offload moved: bytes for each layer, and seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_counting = threading.Lock()
"""Held while a ledger counts, which all threads of an offload, and those that drive its replicas, do."""


@dataclass
class LayerCounts:
    """One layer's bytes; counts add up.

    Attributes
    ----------
    sends
        How often its weights went to the device.
    sent_nbytes, float32_nbytes
        Bytes of payload that went, and what they would have been in float32. A message has up to 15 bytes
        more between two parameters.
    gradient_nbytes
        Bytes of gradient that came back.
    """

    sends: int = 0
    sent_nbytes: int = 0
    float32_nbytes: int = 0
    gradient_nbytes: int = 0


@dataclass
class OffloadLedger:
    """What one ``HostOffload`` moved since it was made.

    Attributes
    ----------
    layers
        By name.
    norm_s, pack_s
        Seconds of norms, most of which are of packing in the same pass, and of packing alone, on the
        offload's own thread: until it is done, whatever else the machine did meanwhile.
    packing_cpu_s
        Of both, the time that this thread had a CPU. Other threads that it packs with aren't counted.
    transfer_s
        Seconds from the first copy of a send to the end of its last, where they are measured
        (``timed=True``); packing of the later layers lies within, and so do norms that a policy waits for.
    exposed_s
        Seconds for which forward passes stood still until weights were packed and, where the host waits for
        that, copied.
    decode_s
        Seconds in which another thread decoded deltas, where the host does that.
    unpack_s
        Seconds in which the training thread unpacked; of an accelerator, only told it to.
    gradient_wait_s
        Seconds for which backward passes stood still at their end, until the gradients were on the host.
    """

    layers: dict[str, LayerCounts] = field(default_factory=dict)
    norm_s: float = 0.0
    pack_s: float = 0.0
    packing_cpu_s: float = 0.0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    decode_s: float = 0.0
    unpack_s: float = 0.0
    gradient_wait_s: float = 0.0

    @property
    def total(self) -> LayerCounts:
        """The sum over the layers; ``sends`` too."""
        rows = self.layers.values()
        return LayerCounts(
            sum(row.sends for row in rows),
            sum(row.sent_nbytes for row in rows),
            sum(row.float32_nbytes for row in rows),
            sum(row.gradient_nbytes for row in rows),
        )

    @property
    def ratio(self) -> float:
        """How many times fewer bytes went to the device than in float32; NaN before the first."""
        total = self.total
        return total.float32_nbytes / total.sent_nbytes if total.sent_nbytes else float("nan")

    def sent(self, layer: str, nbytes: int, count: int) -> None:
        """Count a send of so many numbers."""
        row = self.layers[layer]
        with _counting:
            row.sends, row.sent_nbytes, row.float32_nbytes = (
                row.sends + 1,
                row.sent_nbytes + nbytes,
                row.float32_nbytes + 4 * count,
            )

    def returned(self, layer: str, nbytes: int) -> None:
        """Count bytes of gradient that came back."""
        with _counting:
            self.layers[layer].gradient_nbytes += nbytes

    @contextmanager
    def clocked(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to the field ``name``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.spent(name, time.perf_counter() - begin)

    def spent(self, name: str, seconds: float) -> None:
        """Add seconds to the field ``name``."""
        with _counting:
            setattr(self, name, getattr(self, name) + seconds)
