"""The runs that a job compares, each a method of training and a codec, written ``pipe:quantize:8``.

A server with bounded staleness is written ``server@2:quantize:8``: workers may be two steps ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from gradwire.autotune.settings import NAME as AUTO
from gradwire.codecs import parse
from gradwire.codecs.spec import is_whole
from gradwire.errors import SpecError

METHODS = MappingProxyType(
    {
        "ddp": "DDP",
        "bf16-hook": "DDP + bf16 hook",
        "attach": "attach",
        "sharded": "Sharded",
        "pipe": "Pipe-SGD",
        "sync": "D-Sync",
        "server": "PS-Sync",
    }
)
"""Word on the command line -> name in tables; the last three are those of Pipe-SGD's paper, section 4."""

ON_DDP = ("ddp", "bf16-hook", "attach")
"""The methods that train a ``DistributedDataParallel``, over connections that no link can pace."""

TORCHS = ("ddp", "bf16-hook")
"""The methods whose gradients PyTorch exchanges by itself, without a plan."""

CHOOSE = ("attach", "sync", "pipe")
"""The methods that choose their plan by themselves with ``auto`` in place of a codec."""

UNCOMPRESSED = "identity"

_SHORT_NUMBER = re.compile("[0-9]{1,9}")

LARGEST_STALENESS = 1000
"""The largest staleness of a job; a run that takes fewer steps is not held back at all."""


@dataclass(frozen=True)
class Run:
    """One training from scratch: ``method`` is a key of ``METHODS``, ``codec`` a spec, or ``auto``.

    ``staleness`` is for the method ``server``: by how many steps a worker may be ahead of the slowest (stale
    synchronous parallel, SSP); None is PS-Sync.
    """

    method: str
    codec: str = UNCOMPRESSED
    staleness: int | None = None

    @property
    def label(self) -> str:
        """The name in tables and plots: ``Pipe-SGD + quantize:8``, ``SSP 2``."""
        name = METHODS[self.method] if self.staleness is None else f"SSP {self.staleness}"
        return name if self.codec == UNCOMPRESSED else f"{name} + {self.codec}"

    def __str__(self) -> str:
        staleness = "" if self.staleness is None else f"@{self.staleness}"
        return f"{self.method}{staleness}:{self.codec}"


DDP = Run("ddp")
PS_SYNC = Run("server")
D_SYNC = Run("sync")
"""The baselines that speed-ups refer to."""

COMPARISONS = ("paper", "ddp")
"""The words after ``--compare``; the first is what it means by itself."""


def make_run(method: str, codec: str = UNCOMPRESSED, staleness: int | None = None) -> Run:
    """Return a run with the codec's canonical spec, or ``auto``. Raises ``SpecError``."""
    if method not in METHODS:
        raise SpecError(f"expected a method among {', '.join(METHODS)}, got {method!r}")
    if staleness is not None:
        _check_staleness(method, staleness)
    if method in TORCHS and codec != UNCOMPRESSED:
        raise SpecError(f"{method} is PyTorch's own exchange and takes no codec; write attach:{codec}")
    if codec == AUTO and method not in CHOOSE:
        raise SpecError(f"auto is for {', '.join(CHOOSE)}, but the method is {method}; name a codec")
    return Run(method, codec if codec == AUTO else str(parse(codec)), staleness)


def comparison(codec: str, what: str = COMPARISONS[0]) -> tuple[Run, ...]:
    """Return the runs of ``--compare``: baselines, then the codec alone, then with the pipeline.

    ``paper`` has the baselines of Pipe-SGD's paper, ``ddp`` those of PyTorch. No run comes twice: without
    compression the codec alone is D-Sync. Raises ``SpecError``.
    """
    if what == "ddp":
        return DDP, Run("bf16-hook"), make_run("attach", codec), make_run("pipe", codec)
    return tuple(dict.fromkeys((PS_SYNC, D_SYNC, make_run("sync", codec), make_run("pipe", codec))))


def parse_runs(text: str) -> tuple[Run, ...]:
    """Read ``server,sync:quantize:8,block=256,pipe``. Raises ``SpecError``.

    A codec spec may hold commas itself: a part that does not begin with a method belongs to the spec before
    it.
    """
    specs: list[str] = []
    for part in text.split(","):
        if part.partition(":")[0].partition("@")[0] in METHODS or not specs:
            specs.append(part)
        else:
            specs[-1] += f",{part}"
    runs = tuple(_parse_one(spec) for spec in specs)
    for number, run in enumerate(runs):
        if run in runs[:number]:
            raise SpecError(f"every run is compared once, but {run} comes twice in {text!r}")
    return runs


def _parse_one(spec: str) -> Run:
    head, _, codec = spec.partition(":")
    method, bounded, staleness = head.partition("@")
    if method not in METHODS:
        raise SpecError(
            f"expected METHOD:CODEC with a method of {', '.join(METHODS)}, as in 'pipe:quantize:8', "
            f"got {spec!r}"
        )
    if bounded and not _SHORT_NUMBER.fullmatch(staleness):
        raise SpecError(f"expected a staleness such as server@2, got {head!r}")
    return make_run(method, codec or UNCOMPRESSED, int(staleness) if bounded else None)


def _check_staleness(method: str, staleness: int) -> None:
    if method != "server":
        raise SpecError(f"only the method server has a staleness, but the method is {method}; leave it out")
    if not is_whole(staleness, 0, LARGEST_STALENESS):
        raise SpecError(f"a staleness must be 0 to {LARGEST_STALENESS}, but is {staleness}")
