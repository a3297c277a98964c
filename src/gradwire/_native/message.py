"""What messages of several tensors consist of: rows of a call to the kernels."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.deferred import torch


class Packed(NamedTuple):
    """A tensor of a message.

    Attributes
    ----------
    x
        Contiguous float32.
    offset, bits
        Where the format ``pack`` with so many bits begins in the message, which has room for it.
    summed
        Whether its sum of squares is wanted.
    """

    x: torch.Tensor
    offset: int
    bits: int
    summed: bool


class Source(NamedTuple):
    """A tensor of a message of deltas.

    Attributes
    ----------
    masters
        Contiguous float32.
    base
        The words that the receiver holds, which become those of the masters; None where the masters travel as
        they are.
    front
        The bytes before the body of the delta.
    hashed
        Whether the last eight bytes of the front become the hash of the new base.
    """

    masters: torch.Tensor
    base: torch.Tensor | None = None
    front: bytes = b""
    hashed: bool = False


class Body(NamedTuple):
    """The body of a delta, and what it changes.

    Attributes
    ----------
    address, nbytes
        Of the body.
    words
        What it changes in place.
    full
        Whether it starts from zeros, and not from what these words are.
    plain
        Whether it is the new words themselves.
    """

    address: int
    nbytes: int
    words: torch.Tensor
    full: bool
    plain: bool
