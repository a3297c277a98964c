"""Whether the compiled kernels work on this processor: every codec on a fixed vector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from gradwire import _native
from gradwire.codecs import TABLE, Codec, parse
from gradwire.deferred import torch
from gradwire.doctor.finding import Finding
from gradwire.errors import GradwireError, SpecError

COUNT = 4099
"""Some whole blocks of every block codec, and a rest that no vector register fills."""
BYTES_OF_A_LIBRARY = ("lossless",)
"""Codecs whose bytes belong to the version of another library; what they decode to does not."""


@dataclass(frozen=True)
class SelfTest:
    """What the self-test of so many codecs came to; ``complaints`` say what is wrong.

    ``target`` is the one in force, "" where none can be had. ``digest`` is that of every codec's payload, in
    hexadecimal, equal wherever the same gradwire works right.
    """

    target: str
    digest: str
    codecs: int
    complaints: tuple[str, ...]


def every_codec() -> list[Codec]:
    """Return all codecs, with the parameters of all their examples."""
    return [parse(spec) for row in TABLE for spec in row.codec.EXAMPLES]


def fixed_vector(count: int = COUNT, seed: int = 1) -> torch.Tensor:
    """Return float32 values, 1-D, like a gradient's: of both signs, all within 1, over five decades.

    They follow from whole numbers (a linear congruence), so that they are the same everywhere.
    """
    state, values = seed, []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % (1 << 32)
        values.append(((state >> 8) / (1 << 23) - 1.0) * 2.0 ** -(state % 17))
    return torch.tensor(values, dtype=torch.float32)


def self_test(codecs: Iterable[Codec]) -> SelfTest:
    """Encode and decode the fixed vector with each codec on the scalar target and on the one in force."""
    try:
        target, _ = _native.target(), _native.threads()
    except SpecError as error:
        return SelfTest("", "", 0, (str(error),))
    x, digest, complaints, tried = fixed_vector(), hashlib.sha256(), [], 0
    for codec in codecs:
        tried += 1
        try:
            payload = _try_codec(codec, x, target)
        except (GradwireError, ArithmeticError) as error:
            complaints.append(f"{codec}: {error}")
            continue
        if codec.name not in BYTES_OF_A_LIBRARY:
            digest.update(str(codec).encode() + payload)
    return SelfTest(target, digest.hexdigest()[:16], tried, tuple(complaints))


def check_kernels(done: SelfTest | None) -> Finding:
    """Judge a self-test, None where the packages that it needs cannot be imported."""
    if done is None:
        return Finding("kernels", "warn", "not tried; mend the packages that FAIL first")
    if done.complaints:
        rest = f", and {len(done.complaints) - 1} more" if len(done.complaints) > 1 else ""
        remedy = "set GRADWIRE_TARGET=scalar, and please report this" if done.target else "mend or unset it"
        return Finding("kernels", "FAIL", f"{done.complaints[0]}{rest}; {remedy}")
    return Finding(
        "kernels", "ok", f"{done.target}, the same bytes as scalar; {done.codecs} specs within their bounds"
    )


def _try_codec(codec: Codec, x: torch.Tensor, target: str) -> bytes:
    """Return the payload. Raises ``ArithmeticError`` for one that breaks the contract."""
    with _native.use_target("scalar"):
        scalar = codec.encode(x)
        scalar_decoded = _decoded(codec, scalar, x)
    payload = codec.encode(x)
    if not torch.equal(payload, scalar):
        raise ArithmeticError(f"the targets {target} and scalar encode differently")
    decoded = _decoded(codec, payload, x)
    if not torch.equal(decoded.view(torch.int32), scalar_decoded.view(torch.int32)):
        raise ArithmeticError(f"the targets {target} and scalar decode differently")
    error, bound = (decoded.double() - x.double()).abs().max().item(), codec.bound(x)
    if not error <= bound:
        raise ArithmeticError(f"decoded {error:.3g} off, but its bound is {bound:.3g}")
    return payload.numpy().tobytes()


def _decoded(codec: Codec, payload: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    codec.decode(payload, out)
    return out
