from __future__ import annotations

import pytest

from gradwire_lab.closed_forms.smart_nic import padded_nbytes, smart_step
from gradwire_lab.closed_forms.smart_nic_figures import FEW, LARGE, MANY, SMALL, WIDTH, Prototype, calibrate


@pytest.fixture(scope="module")
def prototype() -> Prototype:
    return calibrate()


def test_the_constants_are_those_of_such_machines(prototype: Prototype) -> None:
    """28 cores with AVX-512 at 2.4 GHz peak at 4.3 Tflop/s; 100 Gbit/s; 8 adders in an Arria 10."""
    assert 0.25 < prototype.node.flops_per_s / (28 * 2.4e9 * 64) < 0.9
    assert prototype.blocking.nbytes_per_s < prototype.overlapped.nbytes_per_s < 100e9 / 8
    assert 150e6 < prototype.bfp.adds_per_s / 8 < 450e6


def test_at_the_large_batch_it_scales_ideally_and_compression_adds_nothing(prototype: Prototype) -> None:
    for nodes in (FEW, MANY):
        plain = smart_step(LARGE, prototype.node, prototype.uncompressed, nodes)
        packed = smart_step(LARGE, prototype.node, prototype.bfp, nodes)
        assert plain.total_s < 1.02 * (plain.forward_s + plain.backward_s)
        assert plain.total_s / packed.total_s < 1.01


def test_at_the_small_batch_the_link_decides_unless_gradients_are_compressed(prototype: Prototype) -> None:
    nic, packed = prototype.uncompressed, prototype.bfp
    nbytes = padded_nbytes(WIDTH, FEW)
    assert nic.all_reduce_s(WIDTH, FEW) == nic.ring_s(nbytes, FEW)
    assert nic.ring_s(nbytes, FEW) > prototype.node.backward_s(WIDTH, SMALL.batch)
    assert packed.ring_s(nbytes, FEW) < packed.all_reduce_s(WIDTH, FEW)
    assert packed.all_reduce_s(WIDTH, FEW) < prototype.node.backward_s(WIDTH, SMALL.batch)
