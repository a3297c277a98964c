"""Write the golden vectors, one small JSON file a codec: `python make_golden.py --write`.

Run it when a codec is new, never to make a failing test pass: payloads are a promise to every installed
gradwire. Without ``--write`` it says what differs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from gradwire.codecs import TABLE, Codec, parse
from gradwire.plan import Plan

FOLDER = Path(__file__).parent / "golden"

SPECS = (
    "identity",
    "fp16",
    "bf16",
    "inceptionn:2^-6",
    "inceptionn:2^-10",
    "inceptionn:2^-10,bounded",
    "errbound:2^-10",
    "errbound:rel=0.05",
    "errbound:rel=0.01,block=64",
    "errbound:rel=0.25,block=1024",
    "truncate:8",
    "truncate:16",
    "truncate:22",
    "truncate:27",
    "quantize:8",
    "quantize:4,block=16",
    "bfp:7x16",
    "bfp:3x8",
    "bitpack:1",
    "bitpack:3",
    "terngrad",
    "terngrad:seed=12345678901",
    "topk:0.3",
    "lossless",
    "fp8",
    "fp8:block=16",
    "ecsq:0.5",
    "ecsq:0.5,block=64",
    "ecsq:0.03125,block=64",
    "ecsq:0.25,foot",
    "ecsq:4,block=64,foot",
)

PLANS: dict[str, tuple[dict[str, str], ...]] = {
    "projected": ({"offload": "inceptionn:2^-10"}, {"offload": "truncate:16"}, {"offload": "bitpack:3"}),
    "scaled": (
        {"codec": "errbound:2^-10", "scale": "auto"},
        {"codec": "inceptionn:2^-6,bounded", "scale": "auto"},
        {"offload": "inceptionn:2^-10", "scale": "auto"},
    ),
}
"""What a plan makes of codecs -> the plans' keys."""

# Every class of every codec, ties of rounding, both signs, and an odd length.
FINITE = (
    *(
        0.0,
        -0.0,
        1e-45,
        2.0**-11,
        3 * 2.0**-10,
        -5 * 2.0**-10,
        2.0**-10,
        -(2.0**-8),
        2.0**-7,
        0.01,
        -0.015625,
    ),
    *(0.0625, 0.3, -0.7, 0.99999994, 1.0, -65.25, 65519.0, 1e30),
)
NONFINITE = (0.5, float("nan"), -0.25, float("inf"), 0.001, float("-inf"), 2.0)
# Two blocks of 64 and a short third one, 2^40 apart; the second has an outlier for the class of two bytes.
BLOCKS = (*(i * 2.0**-30 for i in range(-32, 32)), *(i * 1024.0 for i in range(-40, 23)), 1e6, *NONFINITE)
# Blocks of 16 for fp8: ties and codes below its normal numbers, one block sent as zeros, the largest floats.
EIGHTHS = (
    *((1.0625 + i / 8) * (-1.0) ** i * 2.0 ** (2 - 3 * i // 2) for i in range(16)),
    *((i - 8) * 2.0**-100 for i in range(16)),
    *(3.4e38, -3e38, 1e38, 2.0**110, 2.0**111),
)
# Sizes far below every bound, of which only a scale leaves something.
SIZES = tuple((1.0 - i / 16) * (-1.0) ** i * 2.0 ** (-60 - i) for i in range(16))
# Enough values for an entropy coder: bell-shaped for a table of nibbles, and pairs that depend on each other.
BELL = tuple(sum(pow(48271, 3 * i + j, 2**31 - 1) / 2**30 - 1.0 for j in range(3)) for i in range(2000))
PAIRS = tuple(
    value for i in range(500) for value in ((0.5, 3.0), (3.0, -0.5), (-2.0, -2.0), (1.0, 0.0))[i * i % 7 % 4]
)
LONGER = {
    "errbound:rel=0.01,block=64": BLOCKS,
    "errbound:rel=0.25,block=1024": BLOCKS,
    "fp8:block=16": EIGHTHS,
    "ecsq:0.5": BELL,
    "ecsq:0.25,foot": PAIRS,
    "ecsq:0.5,block=64": BLOCKS,
    "ecsq:0.03125,block=64": BLOCKS,
    "ecsq:4,block=64,foot": BLOCKS,
}
"""Spec -> a third chunk, where two are too short to show what it does."""


def words(x: torch.Tensor) -> str:
    """Write floats as their bits, in hexadecimal."""
    return " ".join(f"{word:08x}" for word in x.numpy().view(np.uint32))


def decoded(codec: Codec, payload: torch.Tensor, count: int) -> str:
    """Write what a payload decodes to."""
    out = torch.zeros(count)
    codec.decode(payload, out)
    return words(out)


def vectors(name: str) -> list[dict[str, object]]:
    """Encode both chunks, and the longer one where there is one, with every spec or plan of this codec."""
    cases: list[tuple[dict[str, object], Codec, tuple[float, ...] | None]] = [
        ({"spec": spec}, parse(spec), LONGER.get(spec)) for spec in SPECS if parse(spec).name == name
    ]
    cases += [
        ({"plan": plan}, Plan.from_json(json.dumps(plan)).encoding, SIZES) for plan in PLANS.get(name, ())
    ]
    return [
        {
            **key,
            "input": words(x),
            "payload": bytes(payload.tolist()).hex(),
            "decoded": decoded(codec, payload, x.numel()),
        }
        for key, codec, longer in cases
        for x in map(torch.tensor, (FINITE, NONFINITE, *([] if longer is None else [longer])))
        for payload in (codec.encode(x),)
    ]


def main() -> None:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    write = parser.parse_args().write
    for name in (*(row.name for row in TABLE), *PLANS):
        path = FOLDER / f"{name}.json"
        text = json.dumps(vectors(name), indent=1) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        if write:
            path.write_text(text)
        print(f"{'written' if write else 'differs'}: {path}")  # noqa: T201 - this is a command


if __name__ == "__main__":
    main()
