from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.closed_forms.network import Groups, Network

RATES = st.floats(1, 1e12)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    world = draw(st.integers(1, 8))
    each = st.one_of(RATES, st.lists(RATES, min_size=world, max_size=world).map(tuple))
    of = tuple(draw(st.lists(st.integers(0, 3), min_size=world, max_size=world)))
    groups = draw(st.one_of(st.none(), RATES.map(lambda rate: Groups(of, rate, 1e-6))))
    return Network(world, draw(each), draw(each), 1e-5, draw(each), draw(each), groups)


@given(networks())
def test_json_both_ways(network: Network) -> None:
    assert Network.from_json(network.to_json()) == network


def test_what_json_leaves_out_keeps_its_default() -> None:
    text = '{"world": 2, "send_nbytes_per_s": 5, "recv_nbytes_per_s": [5, 6]}'
    assert Network.from_json(text) == Network(2, 5, (5, 6))


def test_uniform_takes_its_numbers_from_the_link() -> None:
    network = Network.uniform(3, AlphaBetaGamma(1e-6, 0.125, 2.0))
    assert network == Network(3, 8.0, 8.0, 1e-6, 2.0)
    assert network.per_rank(network.send_nbytes_per_s) == (8.0, 8.0, 8.0)


def test_a_slow_and_a_late_rank() -> None:
    network = Network(3, 8.0, (1.0, 2.0, 3.0), 1e-6, 5.0).slowed(1, 4).delayed(2, 0.5)
    assert network == Network(3, (8.0, 2.0, 8.0), (1.0, 0.5, 3.0), 1e-6, (5.0, 20.0, 5.0), (0.0, 0.0, 0.5))


def test_neighbours_in_blocks_or_dealt() -> None:
    assert Groups.blocks(5, 2, 1e9).of == (0, 0, 1, 1, 2)
    assert Groups.dealt(5, 2, 1e9).of == (0, 1, 0, 1, 0)
    assert Groups.blocks(5, 2, (1e9, 2e9, 3e9)).count == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"world": 0}, "a whole number of at least 1 for world in a network, got 0"),
        ({"world": True}, "a whole number of at least 1 for world in a network, got True"),
        ({"send_nbytes_per_s": 0}, "a finite number above 0 for send_nbytes_per_s in a network, got 0"),
        (
            {"send_nbytes_per_s": (1.0, math.inf)},
            "a finite number above 0 for send_nbytes_per_s in a network, got inf",
        ),
        (
            {"recv_nbytes_per_s": "fast"},
            "a finite number above 0 for recv_nbytes_per_s in a network, got 'fast'",
        ),
        (
            {"recv_nbytes_per_s": (1.0,)},
            r"recv_nbytes_per_s: expected one number, or one for each of 2 ranks, got \(1\.0,\)",
        ),
        ({"latency_s": -1}, "a finite number of at least 0 for latency_s in a network, got -1"),
        ({"latency_s": (1.0, 1.0)}, "a finite number of at least 0 for latency_s in a network"),
        ({"start_s": math.nan}, "a finite number of at least 0 for start_s in a network, got nan"),
        (
            {"reduce_s_per_nbyte": None},
            "a finite number of at least 0 for reduce_s_per_nbyte in a network, got None",
        ),
        ({"groups": Groups((0,), 1e9)}, "a group for each of 2 ranks, got 1 in groups.of"),
    ],
)
def test_a_network_that_cannot_be_is_refused(values: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"world": 2, "send_nbytes_per_s": 1e9, "recv_nbytes_per_s": 1e9}
    with pytest.raises(SpecError, match=sentence):
        Network(**(good | values))


@pytest.mark.parametrize("of", [(), (-1, 0), (0.5, 1), 3])
def test_groups_that_cannot_be_are_refused(of: Any) -> None:
    with pytest.raises(SpecError, match="expected groups as whole numbers of at least 0, one for each rank"):
        Groups(of, 1e9)


def test_uplinks_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="one number, or one for each of 2 groups"):
        Groups((0, 1), (1e9, 1e9, 1e9))
    with pytest.raises(SpecError, match="a whole number of at least 1 for size in a network"):
        Groups.blocks(4, 0, 1e9)
    with pytest.raises(SpecError, match="a whole number of at least 1 for count in a network"):
        Groups.dealt(4, 0, 1e9)


def test_rates_and_factors_that_cannot_be_are_refused() -> None:
    with pytest.raises(SpecError, match="expected beta above 0 seconds per byte, got 0"):
        Network.uniform(2, AlphaBetaGamma(1e-6, 0.0))
    with pytest.raises(SpecError, match="a finite number above 0 for factor in a network, got 0"):
        Network(2, 1.0, 1.0).slowed(0, 0)
    with pytest.raises(SpecError, match="expected a rank from 0 to 1, got 2"):
        Network(2, 1.0, 1.0).slowed(2, 3)
    with pytest.raises(SpecError, match="expected a rank from 0 to 1, got -1"):
        Network(2, 1.0, 1.0).delayed(-1, 3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "expected a JSON object for a network, got invalid JSON"),
        ("[1]", "expected a JSON object for a network, got a list"),
        ('{"world": 2}', "expected the fields world, .* for a network, got no field 'send_nbytes_per_s'"),
        ('{"speed": 2}', "expected the fields world, .* for a network, got the unknown field 'speed'"),
    ],
)
def test_json_that_is_no_network_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Network.from_json(text)


def test_json_with_bad_groups_is_refused() -> None:
    text = json.dumps({"world": 2, "send_nbytes_per_s": 1, "recv_nbytes_per_s": 1, "groups": {"of": [0, 1]}})
    with pytest.raises(SpecError, match="for groups in a network, got no field 'uplink_nbytes_per_s'"):
        Network.from_json(text)
