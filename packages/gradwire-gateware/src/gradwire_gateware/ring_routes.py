"""What ring engines have in common, and what they do with each packet, by ``collectives.ring``."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Bfp, Codec, Identity, Inceptionn
from gradwire.collectives import ring
from gradwire.errors import SpecError, shown
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import Layout

_SLACK_WORDS = 4
"""What a memory holds beyond the largest payload, for last words that two packets do not share."""


class Routes(NamedTuple):
    """For every packet that passes a place of the engine, in order, what happens to it there.

    The same for every rank, because the ring's schedule rotates.
    """

    received_is_forwarded: tuple[bool, ...]
    """Of the packets from the left: is the payload sent on as it came?"""
    decoded_is_added: tuple[bool, ...]
    """Of the packets from the left, decompressed: is it added to local values, or a result?"""
    given_is_own: tuple[bool, ...]
    """Of the results: is it the sum that this rank has published, which it adopts, or one from the left?"""
    encoded_is_local: tuple[bool, ...]
    """Of the packets into the compressor: are they local values, or sums?"""
    encoded_is_published: tuple[bool, ...]
    """Of the packets out of the compressor: is it finished, so that this rank adopts it?"""
    sent_is_forwarded: tuple[bool, ...]
    """Of the packets to the right: is it one from the left as it came, or the compressor's?"""

    @classmethod
    def of(cls, world: int) -> Routes:
        """Return the routes of a ring. Raises ``SpecError`` below two ranks."""
        if world < 2:
            raise SpecError(f"a ring of hardware wants 2 ranks or more, but got {world}; add a rank")
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
    """What all engines of a ring have in common."""

    codec: Codec
    chunk_words: int
    width: int
    routes: Routes
    payload_words: int
    """Words for the payload of a chunk, at most."""

    @classmethod
    def of(cls, codec: Codec, world: int, chunk_words: int, width: int = 256) -> Ring:
        """Return a ring of ``world`` engines. Raises ``SpecError`` if there is no hardware for it."""
        if not isinstance(codec, Identity | Inceptionn | Bfp):
            raise SpecError(
                f"hardware has the codecs identity, inceptionn and bfp, but got {shown(str(codec))}; "
                "choose one of them"
            )
        if isinstance(codec, Bfp) and chunk_words % Layout.of(codec, width).words:
            raise SpecError(
                f"a ring of {str(codec)!r} wants chunks of whole blocks of {Layout.of(codec, width).words} "
                f"words, but got {chunk_words} words; round them up"
            )
        nbytes = codec.max_nbytes(chunk_words * width // LANE_BITS)
        return cls(codec, chunk_words, width, Routes.of(world), -(-nbytes // (width // 8)) + _SLACK_WORDS)


def host_order(rank: int, world: int) -> tuple[list[int], list[int]]:
    """Return the chunks of a rank in the order in which its engine takes them, and gives their sums."""
    steps = list(ring.schedule(rank, world))
    taken = [steps[0].send[0], *(step.recv[0] for step in steps if step.combine)]
    given = [taken[-1], *(step.recv[0] for step in steps if not step.combine)]
    return taken, given
