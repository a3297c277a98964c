"""The encodings that a search may use, and what NICs on the way make of their frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from gradwire.codecs import Codec, Identity, codec_of
from gradwire.codecs.wrappers.projected import Projected, offloadable
from gradwire.codecs.wrappers.scaled import Scaled
from gradwire.errors import SpecError, shown
from gradwire.plan import FLOAT_NBYTES, SCALES
from gradwire.timing.closed_form.packets import packet_ratio
from gradwire.timing.replay.environment import CodecCost

_MTU_NBYTES = 1500


def offered(
    codecs: Sequence[str | Codec], scale: str | None = None, nic: str | Codec | None = None
) -> tuple[Codec, ...]:
    """Return the encodings for ``planner.choose_plan``, each once, identity first. Raises ``SpecError``."""
    named = [found for each in codecs if (found := codec_of(each, "codecs")) is not None]
    if scale not in SCALES:
        raise SpecError(f"scale must be None or 'auto', but is {shown(scale)}")
    behind = codec_of(nic, "nic")
    if behind is not None:
        named.append(Projected(offloadable(behind)))
    scaled = [] if scale is None else [Scaled(each) for each in named if _is_scalable(each)]
    if scale is not None and not scaled:
        raise SpecError(
            "a scale fits the absolute bounds of codecs to values of any size, but none of "
            f"{', '.join(map(str, named))} has one; name one in codecs, such as errbound:2^-8, or leave out "
            "scale"
        )
    return tuple(dict.fromkeys((Identity(), *named, *scaled)))


def _is_scalable(codec: Codec) -> bool:
    return codec.codec.is_scalable if isinstance(codec, Projected) else codec.is_scalable


def behind_nics(
    costs: Mapping[str, CodecCost], encodings: Sequence[Codec], summed: Mapping[int, torch.Tensor]
) -> dict[str, CodecCost]:
    """Return the costs with what frames for NICs take on the line, on the sums of ``calibrate.sums``.

    NICs merge segments, as ``gradwire nic`` does, and keep up with the line.
    """
    found = dict(costs)
    for encoding in encodings:
        inner = encoding.codec if isinstance(encoding, Scaled) else encoding
        if isinstance(inner, Projected):
            cost = costs[str(encoding)]
            points = [
                replace(point, line_nbytes=_line_nbytes(encoding, inner.codec, summed[point.terms]))
                for point in cost.points
            ]
            found[str(encoding)] = replace(cost, points=tuple(points))
    return found


def _line_nbytes(encoding: Codec, nic: Codec, values: torch.Tensor) -> float:
    """Return the bytes of a value behind a NIC with this codec, in packets with their headers."""
    floats = encoding.encode(values)[-FLOAT_NBYTES * values.numel() :].clone().view(torch.float32)
    ratio = floats.nbytes / max(1, nic.encode(floats).numel())
    return FLOAT_NBYTES / packet_ratio(ratio, _MTU_NBYTES)
