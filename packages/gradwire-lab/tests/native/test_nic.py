"""native/nic without sockets: segments, and frames between two engines, against packets made by the book."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire._native import _core
from gradwire_gateware.software_nic import Settings
from support.frames import ACK, FIN, PSH, RST, SYN, USUAL_OPTIONS, Segment, read
from support.nic_bed import SPEC, gradients, projected

SPECS = [SPEC, "inceptionn:2^-6,bounded", "truncate:16", "truncate:23", "bitpack:3"]
FIRST = 2**32 - 6  # the sequence numbers wrap around soon
MARKED = Segment(FIRST + 1)


def engine(spec: str = SPEC, tos: int = 0x28, *, merges: bool = False) -> _core.NicEngine:
    return _core.NicEngine(*Settings(spec).kernel, tos, merges=merges)


def counted(card: _core.NicEngine, to_link: bool) -> dict[str, int]:
    names, counts = _core.nic_count_names(), card.counts(to_link)
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def pass_on(near: _core.NicEngine, far: _core.NicEngine, segment: Segment, cut: int = 0) -> list[Segment]:
    """Return what the far host gets of a segment that the near one sends."""
    frames = near.handle(True, segment.frame(), cut)
    return [read(arrived) for frame in frames for arrived in far.handle(False, frame, 0)]


def open_stream(near: _core.NicEngine, far: _core.NicEngine) -> None:
    call = Segment(FIRST, flags=SYN, options=USUAL_OPTIONS)
    assert pass_on(near, far, call) == [call]
    answer = call.answer(sequence=5, flags=SYN | ACK)
    assert pass_on(far, near, answer) == [answer]


def opened(spec: str = SPEC, *, merges: bool = False) -> tuple[_core.NicEngine, _core.NicEngine]:
    near, far = engine(spec, merges=merges), engine(spec, merges=merges)
    open_stream(near, far)
    return near, far


def mixed(phase: int, data: bytes, spec: str) -> bytes:
    """Return data whose whole floats are the codec's, and whose edges are as they were."""
    head = min(len(data), -phase % 4)
    whole = (len(data) - head) // 4 * 4
    floats = np.frombuffer(data[head : head + whole], np.float32)
    return data[:head] + projected(floats, spec).tobytes() + data[head + whole :]


streams = st.builds(
    lambda n, seed, cut: gradients(n, seed).tobytes()[cut:],
    st.integers(1, 400),
    st.integers(0, 2**32),
    st.integers(0, 3),
)


@given(st.sampled_from(SPECS), st.integers(0, 3), streams | st.binary(max_size=200))
def test_a_segment_keeps_its_edges_and_gets_the_codecs_values(spec: str, phase: int, data: bytes) -> None:
    name, a, b, _ = Settings(spec).kernel
    body = _core.nic_encode(name, a, b, phase, data)
    if body:
        assert len(body) < len(data)
        assert _core.nic_decode(name, a, b, phase, body, len(data)) == mixed(phase, data, spec)


@given(st.sampled_from(SPECS), st.binary(min_size=4, max_size=400).map(lambda x: x[: len(x) // 4 * 4]))
def test_what_nics_compress_is_elementwise_and_loses_nothing_twice(spec: str, data: bytes) -> None:
    values = np.frombuffer(data, np.float32)
    once = projected(values, spec)
    assert projected(once, spec).tobytes() == once.tobytes()
    assert (
        b"".join(projected(values[i : i + 1], spec).tobytes() for i in range(values.size)) == once.tobytes()
    )


@given(st.sampled_from(SPECS), st.integers(0, 3), st.binary(max_size=100), st.integers(0, 300))
def test_any_body_is_restored_to_the_length_or_refused(
    spec: str, phase: int, body: bytes, nbytes: int
) -> None:
    name, a, b, _ = Settings(spec).kernel
    restored = _core.nic_decode(name, a, b, phase, body, nbytes)
    assert restored is None or len(restored) == nbytes


@given(st.sampled_from(SPECS), streams, st.lists(st.integers(1, 400), max_size=12), st.booleans())
def test_a_stream_is_the_same_however_it_is_cut(spec: str, data: bytes, cuts: list[int], again: bool) -> None:
    """Projected as a host would, since the edges of segments pass as they are."""
    data = data[: len(data) // 4 * 4]
    data = projected(np.frombuffer(data, np.float32), spec).tobytes()
    near, far = opened(spec)
    begin = 0
    for size in [*cuts, len(data)]:
        part = data[begin : begin + size]
        segment = replace(MARKED, sequence=(FIRST + 1 + begin) % 2**32, payload=part, options=bytes(12))
        for _ in range(1 + again):
            assert pass_on(near, far, segment) == [segment]
        begin += len(part)
    assert "malformed" not in counted(far, False)


@pytest.mark.parametrize("spec", SPECS)
def test_a_packet_is_smaller_on_the_link_and_whole_behind_it(spec: str) -> None:
    near, far = opened(spec)
    values = gradients(362)
    segment = replace(MARKED, payload=values.tobytes(), flags=ACK | PSH, options=bytes(12), tos=0x2A)
    (sent,) = near.handle(True, segment.frame(), 0)
    assert len(sent) < len(segment.frame())
    assert sent[14 + 9] == 253
    (came,) = far.handle(False, sent, 0)
    assert read(came) == replace(segment, payload=projected(values, spec).tobytes())
    expected = {"compressed": 1, "payload_bytes": 1448, "body_bytes": len(sent) - 66}
    assert expected.items() <= counted(near, True).items()


def test_a_segment_that_the_kernel_would_cut_is_cut_here() -> None:
    near, far = opened()
    values = projected(gradients(5000))
    whole = replace(MARKED, payload=values.tobytes(), flags=ACK | PSH | FIN)
    parts = pass_on(near, far, whole, cut=1449)
    assert [part.sequence for part in parts] == [(FIRST + 1 + 1449 * i) % 2**32 for i in range(14)]
    assert [part.identification for part in parts] == [9 + i for i in range(14)]
    assert {part.flags for part in parts[:-1]} == {ACK}
    assert parts[-1].flags == whole.flags
    assert b"".join(part.payload for part in parts) == whole.payload


@given(
    st.sampled_from(SPECS),
    st.sampled_from([1e-5, 2e-3, 0.2, 10.0]),
    st.integers(0, 3),
    st.integers(1, 65_000),
    st.integers(48, 1448),
    st.integers(0, 2**32),
)
def test_merged_segments_arrive_as_one_and_fill_their_packets(
    spec: str, scale: float, phase: int, nbytes: int, cut: int, seed: int
) -> None:
    values = projected(gradients(nbytes // 4 + 2, seed, scale), spec)
    payload = values.tobytes()[phase : phase + nbytes]
    near, far = opened(spec, merges=True)
    whole = replace(
        MARKED,
        sequence=(FIRST + 1 + phase) % 2**32,
        payload=payload,
        flags=ACK | PSH | FIN,
        options=bytes(12),
    )
    sent = near.handle(True, whole.frame(), cut)
    assert all(len(frame) <= 66 + cut for frame in sent)
    came = [read(frame) for packet in sent for frame in far.handle(False, packet, 0)]
    assert b"".join(segment.payload for segment in came) == payload
    places = [(segment.sequence - whole.sequence) % 2**32 for segment in came]
    assert places == [sum(len(each.payload) for each in came[:number]) for number in range(len(came))]
    assert [segment.flags for segment in came] == [ACK] * (len(came) - 1) + [whole.flags]
    assert len({segment.identification for segment in came}) == len(came)
    assert "malformed" not in counted(far, False)


def test_a_merged_packet_says_how_large_its_segments_are() -> None:
    near, far = opened(merges=True)
    values = projected(gradients(16_000))
    sent = near.handle(True, replace(MARKED, payload=values.tobytes()).frame(), 1448)
    merged = [frame for frame in sent if frame[14 + 20 + 16 : 14 + 20 + 18] == (1448).to_bytes(2, "big")]
    assert len(sent) - len(merged) <= 2, "the first tells the ratio, and the last may be short"
    assert len(sent) < values.nbytes / 1448 / 4
    assert all(len(frame) > 0.9 * (14 + 40 + 1448) for frame in merged[:-1])
    assert engine().handle(False, merged[0], 0) == [], "a NIC that doesn't merge refuses them"
    assert len(far.handle(False, merged[0], 0)) == 1


def test_nics_that_merge_and_others_do_not_compress() -> None:
    near, far = engine(merges=True), engine()
    open_stream(near, far)
    segment = replace(MARKED, payload=bytes(400))
    assert near.handle(True, segment.frame(), 0) == [segment.frame()]
    assert counted(near, False)["other_codec"] == counted(far, False)["other_codec"] == 1


def test_values_that_stop_shrinking_are_tried_a_few_times_only() -> None:
    near, far = opened(merges=True)
    small, large = gradients(16_000, scale=1e-6), gradients(16_000, scale=10.0)
    for number, values in enumerate((small, large, small)):
        at = (FIRST + 1 + number * values.nbytes) % 2**32
        segment = replace(MARKED, sequence=at, payload=projected(values).tobytes())
        came = pass_on(near, far, segment, cut=1448)
        assert b"".join(part.payload for part in came) == segment.payload
    assert counted(near, True)["raw_larger"] > 40


def test_a_handshake_shows_the_hosts_nothing_and_the_nics_each_other() -> None:
    near, far = engine(), engine()
    call = Segment(FIRST, flags=SYN, options=USUAL_OPTIONS)
    (sent,) = near.handle(True, call.frame(), 0)
    offered = read(sent)
    assert offered.options == bytes([254, 8, *b"GW", 1, 3, 117, 0]) + USUAL_OPTIONS
    assert replace(offered, options=call.options) == call
    assert [read(frame) for frame in far.handle(False, sent, 0)] == [call]
    assert counted(near, True)["offers"] == counted(far, False)["offers"] == 1


@pytest.mark.parametrize(
    "options",
    [bytes([1] * 36), bytes([19, 18]) + bytes(16) + bytes([1, 1]), bytes([29, 4, 0, 0])],
    ids=["full", "md5", "authenticated"],
)
def test_a_handshake_without_room_or_signed_passes(options: bytes) -> None:
    near, far = engine(), engine()
    call = Segment(FIRST, flags=SYN, options=options)
    assert near.handle(True, call.frame(), 0) == [call.frame()]
    assert pass_on(far, near, call.answer(flags=SYN | ACK)) == [call.answer(flags=SYN | ACK)]
    segment = replace(MARKED, payload=bytes(400))
    assert near.handle(True, segment.frame(), 0) == [segment.frame()]
    assert counted(near, True)["raw_unseen"] == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tos": 0}, "raw_other"),
        ({"tos": 0x2C}, "raw_other"),
        ({"payload": b""}, "raw_empty"),
        ({"flags": RST | ACK}, "raw_empty"),
        ({"ports": (4000, 5001)}, "raw_unseen"),
        ({"payload": bytes.fromhex("0000c03f") * 100}, "raw_larger"),
        ({"payload": bytes(11)}, "raw_larger"),
    ],
)
def test_everything_else_passes_unchanged(change: dict[str, object], why: str) -> None:
    near, _ = opened()
    segment = replace(MARKED, **({"payload": bytes(400)} | change))  # type: ignore[arg-type]
    assert near.handle(True, segment.frame(), 0) == [segment.frame()]
    assert counted(near, True)[why] == 1
    assert "compressed" not in counted(near, True)


def test_a_damaged_segment_passes_as_it_is_so_that_the_receiver_notices() -> None:
    near, _ = opened()
    frame = bytearray(replace(MARKED, payload=bytes(400)).frame())
    frame[-1] ^= 1
    assert near.handle(True, bytes(frame), 0) == [bytes(frame)]
    assert counted(near, True)["raw_bad_checksum"] == 1


def test_a_compressed_packet_with_any_wrong_byte_is_dropped() -> None:
    near, _ = opened()
    (sent,) = near.handle(True, replace(MARKED, payload=gradients(40).tobytes()).frame(), 0)
    far = engine()
    kept = {*range(16), 23}  # Ethernet, and what says that it is compressed
    for place in set(range(len(sent))) - kept:
        for flip in (1, 0x80):
            wrong = bytearray(sent)
            wrong[place] ^= flip
            assert far.handle(False, bytes(wrong), 0) == [], place
    for size in range(34, len(sent)):
        assert far.handle(False, sent[:size], 0) == []
    assert len(far.handle(False, sent, 0)) == 1, "a NIC that has forgotten the stream restores it"
    assert far.handle(False, near.handle(True, replace(MARKED, payload=bytes(400)).frame(), 0)[0], 0)
    assert engine("inceptionn:2^-9").handle(False, sent, 0) == []


def test_a_segment_that_never_arrives_goes_raw() -> None:
    near, _ = opened()
    payload = gradients(300).tobytes()
    segments = [
        replace(MARKED, sequence=(FIRST + 1 + 60_000 * i) % 2**32, payload=payload) for i in range(100)
    ]
    for segment in segments[:5]:
        assert near.handle(True, segment.frame(), 0) != [segment.frame()]
    tries = [near.handle(True, segments[0].frame(), 0) == [segments[0].frame()] for _ in range(3)]
    assert tries == [False, False, True]
    assert near.handle(True, segments[1].frame(), 0) == [segments[1].frame()]
    later = [near.handle(True, each.frame(), 0) == [each.frame()] for each in segments[5:]]
    assert later[0]
    assert not later[-1], "after a while it tries again"
    assert later == sorted(later, reverse=True)
    for _ in range(3):
        near.handle(True, segments[60].frame(), 0)
    longer = [
        replace(MARKED, sequence=(FIRST + 1 + 60_000 * i) % 2**32, payload=payload) for i in range(100, 500)
    ]
    raw = sum(near.handle(True, each.frame(), 0) == [each.frame()] for each in longer)
    assert raw > 2 * sum(later)


def test_a_peer_without_a_nic_or_with_another_codec_gets_raw_data() -> None:
    segment = replace(MARKED, payload=bytes(400))
    near = engine()
    call = Segment(FIRST, flags=SYN, options=USUAL_OPTIONS)
    near.handle(True, call.frame(), 0)
    near.handle(False, call.answer(flags=SYN | ACK).frame(), 0)
    assert near.handle(True, segment.frame(), 0) == [segment.frame()]
    assert counted(near, True)["raw_no_peer"] == 1
    near, far = engine(), engine("truncate:16")
    open_stream(near, far)
    assert near.handle(True, segment.frame(), 0) == [segment.frame()]
    assert counted(near, False)["other_codec"] == counted(far, False)["other_codec"] == 1


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_pass_or_are_dropped_as_malformed(data: bytes, to_link: bool) -> None:
    card = engine()
    for frame in (data, bytes(12) + b"\x08\x00\x45\x28" + data):
        assert card.handle(to_link, frame, 0) in ([frame], [])
    assert counted(card, to_link)["frames_in"] == 2


def test_the_table_of_streams_forgets_the_oldest() -> None:
    near, far = engine(), engine()
    ports = [(1000 + i % 60000, 6000 + i // 60000) for i in range(5000)]
    for each in ports:
        call = Segment(FIRST, flags=SYN, ports=each)
        pass_on(near, far, call)
        pass_on(far, near, call.answer(flags=SYN | ACK))
    old, new = (replace(MARKED, ports=each, payload=bytes(400)).frame() for each in (ports[0], ports[-1]))
    assert near.handle(True, old, 0) == [old]
    assert near.handle(True, new, 0) != [new]
