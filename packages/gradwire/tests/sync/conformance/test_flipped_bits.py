"""A bit that flips in any file that gradwire or its examples write is an error, or changes nothing.

``GRADWIRE_FLIPS`` flips so many bits of the files of each kind.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from gradwire.errors import GradwireError
from support.file_kinds import KINDS, REFUSED, Kind

FLIPS = int(os.environ.get("GRADWIRE_FLIPS", "5"))


def same(one: object, other: object) -> bool:
    """Return whether two states have the same types and bits."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (one, other)))
        )
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and [*one] == [*other]
            and all(same(one[name], other[name]) for name in one)
        )
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.fixture(params=KINDS.items(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[str, Kind]:
    """Return the name of a kind of files, and what writes one."""
    found: tuple[str, Kind] = request.param
    return found


def test_a_flipped_bit_is_refused_or_changes_nothing(kind: tuple[str, Kind], tmp_path: Path) -> None:
    name, write = kind
    read = write(tmp_path)
    whole, found = read(), Counter[str]()
    drawn = random.Random(name)
    for _ in range(FLIPS):
        files = sorted(each for each in tmp_path.rglob("*") if each.is_file())
        path = drawn.choices(files, [each.stat().st_size for each in files])[0]
        content = path.read_bytes()
        bit = drawn.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        state = said = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of archives that it reads nevertheless
                state = read()
        except GradwireError as error:
            said = str(error)
        refused = said is not None or state is REFUSED
        assert refused or same(state, whole), f"bit {bit} of {path.name} was silent"
        assert "\n" not in (said or ""), said
        found["refused" if refused else "unchanged"] += 1
        path.write_bytes(content)
    sys.stdout.write(f"{name}: {found['refused']} refused, {found['unchanged']} unchanged\n")
    assert same(read(), whole)
