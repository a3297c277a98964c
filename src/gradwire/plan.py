"""The choice as frozen data: which codec, which algorithm, which segment size; JSON both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

from gradwire import collectives
from gradwire.codecs import Codec, Identity, parse
from gradwire.errors import SpecError
from gradwire.wire import HEADER_NBYTES, MAX_FRAME_NBYTES

SEGMENT_UNIT_NBYTES = 4 * 4096
"""A segment is a multiple of 4096 floats, so that the blocks of block codecs end where segments end."""


@dataclass(frozen=True)
class Plan:
    """How gradients are exchanged; all ranks must use equal plans.

    Parameters
    ----------
    codec
        What every hop is encoded with.
    algorithm
        A name of ``gradwire.collectives.TABLE``.
    segment_nbytes
        The part of a chunk, in bytes of float32, that travels as one frame while others are encoded and
        decoded; a multiple of 16384. Smaller segments overlap more of a short chunk, but every frame costs
        Gloo some 0.3 ms on either side.
    pipeline
        How many steps may be under way at once: 1 waits for its own gradient, 2 applies the one before.

    Raises
    ------
    SpecError
        For a value that no exchange can use.
    """

    codec: Codec = field(default_factory=Identity)
    algorithm: str = "ring"
    segment_nbytes: int = 1 << 22
    pipeline: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            raise SpecError(
                f"codec must be a Codec, but is {self.codec!r}; gradwire.codecs.parse reads specs"
            )
        collectives.get(self.algorithm)
        self._check_count("pipeline", self.pipeline, 1)
        self._check_count("segment_nbytes", self.segment_nbytes, SEGMENT_UNIT_NBYTES)
        if self.segment_nbytes % SEGMENT_UNIT_NBYTES != 0:
            raise SpecError(
                f"segment_nbytes must be a multiple of {SEGMENT_UNIT_NBYTES}, but is {self.segment_nbytes}"
            )
        frame_nbytes = HEADER_NBYTES + self.codec.max_nbytes(self.segment_nbytes // 4)
        if frame_nbytes > MAX_FRAME_NBYTES:
            raise SpecError(
                f"a segment of {self.segment_nbytes} bytes may need a frame of {frame_nbytes} bytes with "
                f"{self.codec}, but {MAX_FRAME_NBYTES} is the most; choose a smaller segment_nbytes"
            )

    def to_json(self) -> str:
        """Return the plan as a JSON object, the codec as its spec."""
        return json.dumps(
            {
                "codec": str(self.codec),
                "algorithm": self.algorithm,
                "segment_nbytes": self.segment_nbytes,
                "pipeline": self.pipeline,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what ``to_json`` wrote; what is left out keeps its default. Raises ``SpecError``."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SpecError(f"a plan must be a JSON object, but this is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise SpecError(f"a plan must be a JSON object, but this is a {type(values).__name__}")
        known = [each.name for each in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise SpecError(f"a plan has no {', '.join(unknown)}; it has {', '.join(known)}")
        if "codec" in values:
            values["codec"] = parse(str(values["codec"]))
        return cls(**values)

    @staticmethod
    def _check_count(name: str, value: int, least: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(f"{name} must be a whole number from {least} up, but is {value!r}")
