"""The transport's own all-reduce hands over no frames, and costs what is left."""

from __future__ import annotations

from dataclasses import replace

from gradwire.collectives import backend
from gradwire.timing.environment import MESSAGE_S, CodecCost, CodecPoint, Environment, as_seen_by
from gradwire.timing.line import HostCost, Line

POINT = CodecPoint(2, 4.0, 3e-9, 2e-9, 1e-9)
IDENTITY, OTHER = (CodecCost(spec, (POINT,), 2e-5, exact=True) for spec in ("identity", "bf16"))
HOST = HostCost(send_s=5e-5, receive_s=1e-5, cores=16)
SLOW = Environment(Line(1e-4, 125e6), {"identity": IDENTITY, "bf16": OTHER}, HOST)


def test_only_adding_is_left_of_the_codec() -> None:
    seen = as_seen_by(backend.NAME, SLOW).cost("identity")
    assert seen == CodecCost("identity", (CodecPoint(2, 4.0, 0.0, 0.0, 1e-9),), 0.0, exact=True)


def test_a_message_costs_no_more_than_glooss_and_no_more_than_a_frame() -> None:
    host = as_seen_by(backend.NAME, SLOW).host
    assert host == replace(HOST, send_s=MESSAGE_S, receive_s=1e-5)


def test_nothing_else_changes() -> None:
    seen = as_seen_by(backend.NAME, SLOW)
    assert (seen.line, seen.cost("bf16")) == (SLOW.line, OTHER)
    assert as_seen_by("ring", SLOW) is SLOW


def test_costs_without_identity_stay_as_they_are() -> None:
    bare = replace(SLOW, codecs={"bf16": OTHER})
    assert as_seen_by(backend.NAME, bare) is bare
