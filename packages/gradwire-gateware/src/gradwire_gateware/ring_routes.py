"""The parameters of ring engines, and the routes of their packets, derived from ``collectives.ring``."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Bfp, Codec, Identity, Inceptionn
from gradwire.collectives import ring
from gradwire.errors import SpecError, shown
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import BfpLayout

_SLACK_WORDS = 4
"""The extra words of a memory beyond the largest payload, because packets share no words."""


class Routes(NamedTuple):
    """The route of every packet at each point of the engine, in order, the same for every rank."""

    received_is_forwarded: tuple[bool, ...]
    """The flags of packets from the left that are forwarded unchanged."""
    decoded_is_added: tuple[bool, ...]
    """The flags of decompressed packets that are added to local values; the others are results."""
    given_is_own: tuple[bool, ...]
    """The flags of results that are this rank's own published sum; the others are from the left."""
    encoded_is_local: tuple[bool, ...]
    """The flags of packets into the compressor that have local values; the others have sums."""
    encoded_is_published: tuple[bool, ...]
    """The flags of packets out of the compressor that are final sums, which this rank adopts."""
    sent_is_forwarded: tuple[bool, ...]
    """The flags of packets to the right that are forwarded; the others are from the compressor."""

    @classmethod
    def of(cls, world: int) -> Routes:
        """Return the routes of a ring. Raises ``SpecError`` below two ranks."""
        if world < 2:
            raise SpecError(f"a hardware ring: expected at least 2 ranks, got {world}; add a rank")
        steps = list(ring.schedule(0, world))
        sends_of = [(step.send[0], step.combine) for step in steps]
        sums = [step.recv[0] for step in steps if step.combine]
        arrivals = [step.recv[0] for step in steps if not step.combine]
        forwarded = [not combine and chunk in arrivals for chunk, combine in sends_of]
        encoded = [send for send, is_forwarded in zip(sends_of, forwarded, strict=True) if not is_forwarded]
        broadcast = [chunk for chunk, combine in sends_of if not combine]
        return cls(
            (*(False for _ in sums), *(chunk in broadcast for chunk in arrivals)),
            (*(True for _ in sums), *(False for _ in arrivals)),
            (True, *(False for _ in arrivals)),
            tuple(chunk not in sums for chunk, _ in encoded),
            tuple(not combine for _, combine in encoded),
            tuple(forwarded),
        )


class Ring(NamedTuple):
    """The shared parameters of all engines of a ring."""

    codec: Codec
    chunk_words: int
    width: int
    routes: Routes
    payload_words: int
    """The largest number of words of a chunk's payload."""

    @classmethod
    def of(cls, codec: Codec, world: int, chunk_words: int, width: int = 256) -> Ring:
        """Return a ring of ``world`` engines. Raises ``SpecError`` for unsupported parameters."""
        if not isinstance(codec, Identity | Inceptionn | Bfp):
            raise SpecError(
                f"a hardware ring: expected codec identity, inceptionn, or bfp, got {shown(str(codec))}; "
                "choose one of these codecs"
            )
        if isinstance(codec, Bfp) and chunk_words % BfpLayout.of(codec, width).words:
            raise SpecError(
                f"a ring of {str(codec)!r}: expected chunks of whole blocks of "
                f"{BfpLayout.of(codec, width).words} words, got {chunk_words} words; round chunk_words up"
            )
        nbytes = codec.max_nbytes(chunk_words * width // LANE_BITS)
        return cls(codec, chunk_words, width, Routes.of(world), -(-nbytes // (width // 8)) + _SLACK_WORDS)


def host_order(rank: int, world: int) -> tuple[list[int], list[int]]:
    """Return a rank's chunks in the order of the engine's input, and in the order of its output sums."""
    steps = list(ring.schedule(rank, world))
    taken = [steps[0].send[0], *(step.recv[0] for step in steps if step.combine)]
    given = [taken[-1], *(step.recv[0] for step in steps if not step.combine)]
    return taken, given
