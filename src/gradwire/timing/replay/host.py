"""What a frame costs a host beside the codec; ``calibrate`` measures it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gradwire.errors import SpecError
from gradwire.plan import SEGMENT_UNIT_NBYTES
from gradwire.units import is_number

FRAMES, SMALL_NBYTES, LARGE_NBYTES = 8, SEGMENT_UNIT_NBYTES, 1 << 20
"""How many frames of which sizes tell what one costs, and what a byte of it."""


@dataclass(frozen=True)
class HostCost:
    """What a host spends on a frame beside the codec, and how many of its cores do it.

    The rank's own thread spends ``send_s`` or ``receive_s`` on every frame and ``send_s_per_nbyte`` or
    ``receive_s_per_nbyte`` on every byte of it; the threads of the transport spend ``beside_s_per_nbyte`` on
    either side meanwhile. All are seconds of a core. ``cores`` is how many cores one machine has,
    ``ranks_per_machine`` how many ranks share them (all hosts of a testbed share one machine).
    ``disagreement`` is that of the repeats of the measurement; 0 where it is not known. Raises ``SpecError``
    for a number that no host has.
    """

    send_s: float = 0.0
    receive_s: float = 0.0
    send_s_per_nbyte: float = 0.0
    receive_s_per_nbyte: float = 0.0
    beside_s_per_nbyte: float = 0.0
    cores: int = 1 << 16
    ranks_per_machine: int = 1
    disagreement: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name in ("cores", "ranks_per_machine"):
                if type(value) is not int or value < 1:
                    raise SpecError(f"a host's {name} must be a whole number from 1 up, but is {value!r}")
            elif not (is_number(value) and 0 <= value < float("inf")):
                raise SpecError(f"a host's {name} must be a number from 0 up, but is {value!r}")


@dataclass(frozen=True)
class FrameCost:
    """Processor seconds for one frame: of the rank's own thread, and of the transport's beside it."""

    thread_s: float = 0.0
    beside_s: float = 0.0


@dataclass(frozen=True)
class EndCost:
    """What one end of a link spends on frames, sending or receiving: seconds a frame, and a byte of it."""

    frame_s: float
    s_per_nbyte: float
    beside_s_per_nbyte: float

    @classmethod
    def fit(cls, small: FrameCost, large: FrameCost, codec_s_per_nbyte: float) -> EndCost:
        """Return the costs of frames that were measured at ``SMALL_NBYTES`` and ``LARGE_NBYTES``.

        The codec's part in the thread's time is known, and is not the frame's.
        """
        span = LARGE_NBYTES - SMALL_NBYTES
        per_nbyte = max(0.0, (large.thread_s - small.thread_s) / span - codec_s_per_nbyte)
        return cls(
            max(0.0, small.thread_s - per_nbyte * SMALL_NBYTES),
            per_nbyte,
            max(0.0, (large.beside_s - small.beside_s) / span),
        )


def both_ends(sender: EndCost, receiver: EndCost, cores: int, ranks_per_machine: int = 1) -> HostCost:
    """Return the costs of a host, which sends and receives."""
    return HostCost(
        sender.frame_s,
        receiver.frame_s,
        sender.s_per_nbyte,
        receiver.s_per_nbyte,
        (sender.beside_s_per_nbyte + receiver.beside_s_per_nbyte) / 2,
        cores,
        ranks_per_machine,
    )
