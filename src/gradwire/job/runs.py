"""What a job compares: runs, each a method of training and a codec, written ``pipe:quantize:8``."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from gradwire.codecs import parse
from gradwire.errors import SpecError

METHODS = MappingProxyType({"server": "PS-Sync", "sync": "D-Sync", "pipe": "Pipe-SGD"})
"""Word on the command line -> name in the literature (Pipe-SGD, section 4)."""

UNCOMPRESSED = "identity"


@dataclass(frozen=True)
class Run:
    """One training from scratch: ``method`` is a key of ``METHODS``, ``codec`` a spec."""

    method: str
    codec: str = UNCOMPRESSED

    @property
    def label(self) -> str:
        """The name in tables and plots: ``Pipe-SGD + quantize:8``."""
        name = METHODS[self.method]
        return name if self.codec == UNCOMPRESSED else f"{name} + {self.codec}"

    def __str__(self) -> str:
        return f"{self.method}:{self.codec}"


PS_SYNC = Run("server")
D_SYNC = Run("sync")
"""The baselines that speed-ups refer to."""


def make_run(method: str, codec: str = UNCOMPRESSED) -> Run:
    """Return a run with the codec's canonical spec. Raises ``SpecError``."""
    if method not in METHODS:
        raise SpecError(f"a method is one of {', '.join(METHODS)}, but {method!r} came")
    return Run(method, str(parse(codec)))


def comparison(codec: str) -> tuple[Run, ...]:
    """Return the runs of ``--compare``: both baselines, then the codec alone, then with the pipeline.

    No run comes twice: without compression the codec alone is D-Sync. Raises ``SpecError``.
    """
    return tuple(dict.fromkeys((PS_SYNC, D_SYNC, make_run("sync", codec), make_run("pipe", codec))))


def parse_runs(text: str) -> tuple[Run, ...]:
    """Read ``server,sync:quantize:8,block=256,pipe``. Raises ``SpecError``.

    A codec spec may hold commas itself: a part that does not begin with a method belongs to the spec before
    it.
    """
    specs: list[str] = []
    for part in text.split(","):
        if part.partition(":")[0] in METHODS or not specs:
            specs.append(part)
        else:
            specs[-1] += f",{part}"
    runs = tuple(_parse_one(spec) for spec in specs)
    for number, run in enumerate(runs):
        if run in runs[:number]:
            raise SpecError(f"every run is compared once, but {run} comes twice in {text!r}")
    return runs


def _parse_one(spec: str) -> Run:
    method, _, codec = spec.partition(":")
    if method not in METHODS:
        raise SpecError(
            f"a run is written METHOD:CODEC with a method of {', '.join(METHODS)}, as in 'pipe:quantize:8', "
            f"but {spec!r} came"
        )
    return make_run(method, codec or UNCOMPRESSED)
