from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_lab.closed_forms.smart_nic import (
    Mlp,
    Node,
    PlainNic,
    RingCircuit,
    SmartNic,
    blocking_step,
    overlapped_step,
    padded_nbytes,
    smart_step,
)

NODE = Node(flops_per_s=1e12, update_s_per_parameter=1e-9)
NIC = SmartNic(
    line_nbytes_per_s=5e9, usable_share=0.8, compression=2.0, adds_per_s=1e9, pcie_nbytes_per_s=16e9
)

MLPS = st.builds(
    Mlp,
    widths=st.lists(st.integers(1, 4096), min_size=1, max_size=12).map(tuple),
    batch=st.integers(1, 4096),
)


def test_the_terms_by_hand() -> None:
    """1000 x 1000 weights and 8 nodes: 4 MB of gradients, 1.75 of them through each adder and link."""
    assert NODE.forward_s(1000, 500) == pytest.approx(1e-3)
    assert NODE.backward_s(1000, 500) == pytest.approx(2e-3)
    assert NODE.update_s(1000) == pytest.approx(1e-3)
    assert padded_nbytes(1000, 8) == 4_000_000
    assert NIC.ring_s(4e6, 8) == pytest.approx(7e6 / 8e9)
    assert NIC.add_s(4e6, 8) == pytest.approx(7e6 / 4e9)
    assert NIC.memory_s(4e6) == pytest.approx(8e6 / 16e9)
    assert NIC.all_reduce_s(1000, 8) == pytest.approx(7e6 / 4e9)
    assert PlainNic(1e9).all_reduce_s(1000, 8) == pytest.approx(14 * 5e5 / 1e9)


def test_gradients_are_padded_to_equal_chunks() -> None:
    """9 weights among 4 nodes: 3 each, 12 in all."""
    assert padded_nbytes(3, 4) == 48


def test_three_layers_of_the_paper_by_hand() -> None:
    """T_F 1 + 4 + 1, T_B 2, 8, 2 and T_U 1, 4, 1 ms for widths 1000, 2000, 1000; T_AR 2.5, 10, 2.5 ms.

    From the last layer: 2 + max(8, 2.5) + max(1 + 2, 10) + max(4, 2.5) + 1, and 6 for the way forward.
    """
    nic = SmartNic(5e9, 1.0, 1e9, 7e6 / 2.5e-3 / 4, 1e15)
    trace = smart_step(Mlp((1000, 2000, 1000), 500), NODE, nic, 8)
    assert trace.total_s == pytest.approx(1e-3 * (6 + 2 + 8 + 10 + 4 + 1))
    parts_s = (trace.forward_s, trace.backward_s, trace.update_s, trace.exposed_s)
    assert parts_s == pytest.approx((6e-3, 12e-3, 6e-3, 7e-3))


@given(MLPS, st.integers(1, 64))
def test_the_sum_is_the_trace_that_the_paper_draws(mlp: Mlp, nodes: int) -> None:
    """Its figure 3b, played: launch a layer, compute the one below, wait, launch that, update, and so on."""
    backward = [NODE.backward_s(width, mlp.batch) for width in mlp.widths]
    update = [NODE.update_s(width) for width in mlp.widths]
    exchange = [NIC.all_reduce_s(width, nodes) for width in mlp.widths]
    now_s = sum(NODE.forward_s(width, mlp.batch) for width in mlp.widths) + backward[-1]
    for layer in reversed(range(len(mlp.widths))):
        done_s = now_s + exchange[layer]
        if layer + 1 < len(update):
            now_s += update[layer + 1]
        if layer > 0:
            now_s += backward[layer - 1]
        now_s = max(now_s, done_s)
    assert smart_step(mlp, NODE, NIC, nodes).total_s == pytest.approx(now_s + update[0])


def test_a_step_that_overlaps_by_hand() -> None:
    """Two layers, backward 2 x 1.5 ms each, exchange 5 ms and update 1 ms, all at once after the first."""
    plain = PlainNic(5e5 / (5e-3 / 14))
    trace = overlapped_step(Mlp((1000, 1000), 500), NODE, plain, 8, slowdown=1.5)
    assert trace.backward_s == pytest.approx(6e-3)
    assert trace.exposed_s == pytest.approx(3e-3 + 2 * 6e-3 - 6e-3)
    assert trace.total_s == pytest.approx(2e-3 + 15e-3)


def test_the_cycles_of_a_circuit_by_hand() -> None:
    """8 lanes, 4 nodes, chunks of 100 words: 6 chunks cross each link, 4 leave and enter the memory."""
    circuit = RingCircuit(lanes=8, compression=2.0, decoded=6)
    nic, nbytes = circuit.nic, 4 * 100 * 32
    assert nic.ring_s(nbytes, 4) == pytest.approx(300)
    assert nic.add_s(nbytes, 4) == pytest.approx(600)
    assert nic.memory_s(nbytes) == pytest.approx(400)
    assert circuit.cycles(4, 100) == pytest.approx(100 + 600)
    assert circuit.cycles(4, 100, rounds=3) == pytest.approx(100 + 3 * 600)
    assert RingCircuit(8, 2.0, decoded=7).cycles(4, 100) == pytest.approx(100 + 700)
    assert RingCircuit(8, 2.0, decoded=6, latency=9).cycles(4, 100, 3) == pytest.approx(100 + 3 * 609)


@given(MLPS, st.integers(1, 64))
def test_overlap_is_between_the_naive_step_and_computation_alone(mlp: Mlp, nodes: int) -> None:
    plain = PlainNic(1e9)
    naive = blocking_step(mlp, NODE, plain, nodes)
    overlapped = overlapped_step(mlp, NODE, plain, nodes, slowdown=1.0)
    rounding = 1e-9
    assert overlapped.total_s <= naive.total_s * (1 + rounding)
    assert overlapped.total_s >= (naive.forward_s + naive.backward_s) * (1 - rounding)
    assert overlapped.exposed_s >= (plain.all_reduce_s(mlp.widths[0], nodes)) * (1 - rounding)


def test_one_node_exchanges_nothing() -> None:
    mlp = Mlp((500, 600), 100)
    nic = SmartNic(5e9, 1.0, 1.0, 1e9, 1e18)
    assert smart_step(mlp, NODE, nic, 1).exposed_s < 1e-9
    assert blocking_step(mlp, NODE, PlainNic(1e9), 1).exposed_s == 0
