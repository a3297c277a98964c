"""Print the golden vectors of the compiled formats, one per line, as read by ``native/fuzz/golden.cc``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from gradwire.codecs import parse
from gradwire.codecs.native import NativeCodec

FOLDER = Path(__file__).parent.parent / "packages" / "gradwire" / "tests" / "codecs" / "golden"


def words(values: np.ndarray) -> str:
    """Return the floats' bits as eight hexadecimal digits each."""
    return "".join(f"{word:08x}" for word in values.view(np.uint32))


def lines() -> Iterator[str]:
    """Yield a line for every vector whose payload consists of a compiled format only."""
    for path in sorted(FOLDER.glob("*.json")):
        for vector in json.loads(path.read_text(encoding="utf-8")):
            codec = parse(vector["spec"]) if "spec" in vector else None
            if not isinstance(codec, NativeCodec):
                continue
            name, params = codec.compiled
            bits = np.array([int(word, 16) for word in vector["input"].split()], dtype=np.uint32)
            payload = torch.frombuffer(bytearray.fromhex(vector["payload"]), dtype=torch.uint8)
            decoded = torch.empty(len(bits))
            codec.decode(payload, decoded)
            a, b, c = (*params, 0, 0, 0)[:3]
            yield f"{name} {a} {b} {c} {words(bits)} {vector['payload']} {words(decoded.numpy())}"


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201 - this is a command
