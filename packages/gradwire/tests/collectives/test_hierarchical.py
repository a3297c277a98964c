from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.collectives import TABLE, Hierarchical, Step, butterfly, get, ring
from gradwire.errors import SpecError
from support.cases import for_each
from support.rendezvous import rendezvous, rounds

FLAT = sorted(set(TABLE) - {"hierarchical"})


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchical:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    names = draw(st.lists(st.sampled_from(FLAT), min_size=len(sizes) + 1, max_size=len(sizes) + 1))
    return Hierarchical(tuple(sizes), tuple(names))


def test_two_rings_of_two_are_those_of_figure_1c() -> None:
    """Written out by hand for rank 1 of 4: in the pair, across the pairs with rank 3, in the pair again."""
    seen = [(s.send_to, s.send, s.recv_from, s.recv, s.combine) for s in get("hierarchical:2").schedule(1, 4)]
    assert seen == [
        (0, (2, 4), 0, (0, 2), True),  # chunks 0 and 1 become those of rank 1 in the pair
        (3, (0, 1), 3, (1, 2), True),  # of these, chunk 1 becomes its own
        (3, (1, 2), 3, (0, 1), False),
        (0, (0, 2), 0, (2, 4), False),
    ]


def test_an_aggregator_above_rings_takes_every_chunk_from_its_owner_as_in_figure_1b() -> None:
    up = [step for step in get("hierarchical:3,ring+star").schedule(4, 9) if step.send_to not in (3, 5)]
    assert up == [Step(1, (2, 3), None, (0, 0), True), Step(None, (0, 0), 1, (2, 3), False)]


def test_aggregators_of_several_levels_are_those_of_figure_1a() -> None:
    conventional = get("hierarchical:2x2,star+star+star")
    up = [[(s.send_to, s.recv_from) for s in conventional.reduce(rank, 8)] for rank in range(8)]
    assert up == [
        [(None, 1), (None, 2), (None, 4)],
        [(0, None)],
        [(None, 3), (0, None)],
        [(2, None)],
        [(None, 5), (None, 6), (0, None)],
        [(4, None)],
        [(None, 7), (4, None)],
        [(6, None)],
    ]


def test_pairs_of_pairs_of_rings_send_what_a_butterfly_sends() -> None:
    """Both halve three times with the ranks that differ in one bit, this one in the lowest first."""
    for rank in range(8):
        mine = list(get("hierarchical:2x2").schedule(rank, 8))
        other = list(butterfly.schedule(rank, 8))
        assert [step.send_to for step in mine] == [rank ^ bit for bit in (1, 2, 4, 4, 2, 1)]
        assert [step.send[1] - step.send[0] for step in mine] == [
            step.send[1] - step.send[0] for step in other
        ]


@for_each("names", list(product(FLAT, FLAT, FLAT)))
@pytest.mark.parametrize("worlds", [(2, 3, 2), (4, 2, 3)])
def test_equal_groups_add_up_the_levels(names: tuple[str, ...], worlds: tuple[int, ...]) -> None:
    algorithm, world, n = Hierarchical(worlds[:-1], names), math.prod(worlds), 5040
    steps, nbytes, part = 0, Fraction(0), Fraction(n)
    for name, joined in zip(names, worlds, strict=True):
        steps += TABLE[name].steps(joined)
        nbytes += Fraction(TABLE[name].nbytes(joined, n)).limit_denominator() * part / n
        part /= TABLE[name].chunks(joined)
    assert algorithm.steps(world) == steps
    assert algorithm.nbytes(world, n) == pytest.approx(float(nbytes), rel=1e-12)


@pytest.mark.parametrize("world", [4, 12, 64, 1024, 4096])
def test_rings_of_rings_send_what_one_ring_sends_in_fewer_steps(world: int) -> None:
    algorithm = get("hierarchical")
    assert algorithm.nbytes(world, 10**6) == pytest.approx(ring.nbytes(world, 10**6), rel=1e-12)
    assert algorithm.steps(world) <= 6 * math.sqrt(world)
    assert sum(1 for _ in algorithm.schedule(world - 1, world)) == algorithm.steps(world)


@given(algorithm=hierarchies(), world=st.integers(1, 40))
@settings(max_examples=60)
def test_any_hierarchy_of_any_world_sums_everything_once_and_keeps_to_its_card(
    algorithm: Hierarchical, world: int
) -> None:
    chunks = algorithm.chunks(world)
    schedules = [list(algorithm.schedule(rank, world)) for rank in range(world)]
    shares = [[Counter({rank: 1}) for _ in range(chunks)] for rank in range(world)]
    messages = rendezvous(schedules)
    for message in messages:
        assert message.send.send == message.recv.recv
        for chunk in range(*message.send.send):
            came, own = shares[message.sender][chunk], shares[message.receiver][chunk]
            shares[message.receiver][chunk] = own + came if message.recv.combine else came
    everybody = Counter(dict.fromkeys(range(world), 1))
    assert shares == [[everybody] * chunks for _ in range(world)]
    rounds(schedules)
    assert algorithm.steps(world) == max((message.hops for message in messages), default=0)
    sent = Counter[int]()
    for message in messages:
        sent[message.sender] += len(range(*message.send.send))
    assert algorithm.nbytes(world, 12 * chunks) == pytest.approx(12 * max(sent.values(), default=0))


@pytest.mark.parametrize("name", FLAT)
@for_each("world", range(1, 7))
def test_a_world_within_one_group_runs_the_first_algorithm_alone(name: str, world: int) -> None:
    algorithm = get(f"hierarchical:6x2,{name}+star+star")
    assert algorithm.chunks(world) == TABLE[name].chunks(world)
    for rank in range(world):
        assert list(algorithm.schedule(rank, world)) == list(TABLE[name].schedule(rank, world))


@given(algorithm=hierarchies())
def test_a_spec_reads_back(algorithm: Hierarchical) -> None:
    assert get(str(algorithm)) == algorithm
    assert str(get(str(algorithm))) == str(algorithm)


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("hierarchical", "hierarchical"),
        ("hierarchical:4", "hierarchical:4"),
        ("hierarchical:04x2,ring+ring+ring", "hierarchical:4x2"),
        ("hierarchical:4,ring+star", "hierarchical:4,ring+star"),
    ],
)
def test_a_spec_has_one_canonical_form(spec: str, canonical: str) -> None:
    assert str(get(spec)) == canonical


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hierarchical:", r"hierarchical: expected group sizes of at least 1, .* got ''"),
        ("hierarchical:0", r"hierarchical: expected group sizes of at least 1, .* got '0'"),
        ("hierarchical:4x-2", r"got '4x-2'; for example, write 'hierarchical:4,ring\+star'"),
        ("hierarchical:4x", r"got '4x'"),
        ("hierarchical:ring", r"got 'ring'"),
        ("hierarchical:\u0664", "got '\u0664'"),
        (
            "hierarchical:4,ring",
            r"one more algorithm than group sizes, got 1 for 1; for example, write",
        ),
        ("hierarchical:4,ring+star+star", r"got 3 for 1"),
        (
            "hierarchical:4,ring+rign",
            r"an algorithm for each level, got 'rign'; choose one of butterfly, pairwise",
        ),
        ("hierarchical:4,hierarchical+ring", r"an algorithm for each level, got 'hierarchical'"),
        ("hierarchical:4,", r"an algorithm for each level, got ''"),
        ("ring:4", r"unknown algorithm 'ring:4'"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_in_a_sentence(spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        get(spec)


@pytest.mark.parametrize(
    ("sizes", "names", "reason"),
    [
        (None, ("ring", "star"), "hierarchical: expected group sizes before algorithms"),
        ((), ("ring",), "of at least 1, .* got ''"),
        ((4, 0), ("ring",) * 3, "got '4x0'"),
    ],
)
def test_levels_that_cannot_be_are_refused_without_a_spec_too(
    sizes: tuple[int, ...] | None, names: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason):
        Hierarchical(sizes, names)


@pytest.mark.parametrize(
    ("world", "size"), [(1, 1), (6, 3), (8, 4), (9, 3), (12, 4), (13, 4), (64, 8), (100, 10)]
)
def test_without_a_size_groups_have_about_the_square_root_of_the_world(world: int, size: int) -> None:
    for rank in range(world):
        assert list(get("hierarchical").schedule(rank, world)) == list(
            Hierarchical((size,), ("ring", "ring")).schedule(rank, world)
        )
