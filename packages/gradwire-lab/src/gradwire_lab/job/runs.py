"""The runs that a job compares: a training method and a codec each, written ``pipe:quantize:8``.

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
"""Method on the command line -> name in tables; the last three are defined in Pipe-SGD's paper, section 4."""

ON_DDP = ("ddp", "bf16-hook", "attach")
"""The methods that train a ``DistributedDataParallel``, whose connections ``--link`` cannot throttle."""

TORCHS = ("ddp", "bf16-hook")
"""The methods that use PyTorch's own gradient exchange, without a plan."""

CHOOSE = ("attach", "sync", "pipe")
"""The methods that accept ``auto`` in place of a codec and then choose their own plan."""

UNCOMPRESSED = "identity"

_SHORT_NUMBER = re.compile("[0-9]{1,9}")

LARGEST_STALENESS = 1000
"""The largest staleness of a job; shorter runs never wait for a slow worker."""


@dataclass(frozen=True)
class Run:
    """One training run from scratch: ``method`` is a key of ``METHODS``, ``codec`` a spec or ``auto``.

    ``staleness`` applies to the method ``server``: the number of steps that a worker may be ahead of the
    slowest one (stale synchronous parallel, SSP). None is PS-Sync.
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
"""The baselines of speed-ups."""

COMPARISONS = ("paper", "ddp")
"""The values of ``--compare``, default first."""


def make_run(method: str, codec: str = UNCOMPRESSED, staleness: int | None = None) -> Run:
    """Return a run with the codec's canonical spec or ``auto``. Raises ``SpecError``."""
    if method not in METHODS:
        raise SpecError(f"expected one of the methods {', '.join(METHODS)}, got {method!r}")
    if staleness is not None:
        _check_staleness(method, staleness)
    if method in TORCHS and codec != UNCOMPRESSED:
        raise SpecError(f"{method} is PyTorch's own exchange and supports no codec; use attach:{codec}")
    if codec == AUTO and method not in CHOOSE:
        raise SpecError(
            f"expected one of the methods {', '.join(CHOOSE)} with auto, got {method}; pass a codec"
        )
    return Run(method, codec if codec == AUTO else str(parse(codec)), staleness)


def comparison(codec: str, what: str = COMPARISONS[0]) -> tuple[Run, ...]:
    """Return the runs of ``--compare``: the baselines, then the codec alone, then with the pipeline.

    ``paper`` has the baselines of Pipe-SGD's paper, ``ddp`` has PyTorch's. Runs are unique: without
    compression, the codec alone equals D-Sync. Raises ``SpecError``.
    """
    if what == "ddp":
        return DDP, Run("bf16-hook"), make_run("attach", codec), make_run("pipe", codec)
    return tuple(dict.fromkeys((PS_SYNC, D_SYNC, make_run("sync", codec), make_run("pipe", codec))))


def parse_runs(text: str) -> tuple[Run, ...]:
    """Parse runs such as ``server,sync:quantize:8,block=256,pipe``. Raises ``SpecError``.

    Codec specs may contain commas: a part that doesn't begin with a method belongs to the previous spec.
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
            raise SpecError(f"expected every run once, got {run} twice in {text!r}; remove one of them")
    return runs


def _parse_one(spec: str) -> Run:
    head, _, codec = spec.partition(":")
    method, bounded, staleness = head.partition("@")
    if method not in METHODS:
        raise SpecError(
            f"expected METHOD:CODEC, as in 'pipe:quantize:8', with one of the methods {', '.join(METHODS)}, "
            f"got {spec!r}"
        )
    if bounded and not _SHORT_NUMBER.fullmatch(staleness):
        raise SpecError(f"expected a staleness such as server@2, got {head!r}")
    return make_run(method, codec or UNCOMPRESSED, int(staleness) if bounded else None)


def _check_staleness(method: str, staleness: int) -> None:
    if method != "server":
        raise SpecError(f"expected the method server with a staleness, got {method}; omit the staleness")
    if not is_whole(staleness, 0, LARGEST_STALENESS):
        raise SpecError(f"expected a staleness from 0 to {LARGEST_STALENESS}, got {staleness}")
