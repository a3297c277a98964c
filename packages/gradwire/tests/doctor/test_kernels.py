from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gradwire import _native
from gradwire.codecs import TABLE, Identity
from gradwire.doctor.software import SelfTest, check_kernels, every_codec, fixed_vector, self_test


@dataclass(frozen=True)
class Careless(Identity):
    """Loses a little, and promises that it does not."""

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        super()._decode(payload, out)
        out[7] += 0.5

    def bound(self, x: torch.Tensor) -> float:
        del x
        return 0.25


@dataclass(frozen=True)
class Moody(Identity):
    """Its bytes depend on the target."""

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return super()._encode(x + (_native.target() != "scalar"), out)


def test_this_machine_passes_with_every_codec() -> None:
    codecs = every_codec()
    assert {codec.name for codec in codecs} == {row.name for row in TABLE}
    done = self_test(codecs)
    assert done == SelfTest(_native.target(), done.digest, len(codecs), ())
    assert check_kernels(done).result == "ok"


@pytest.mark.parametrize("target", _native.available_targets())
def test_every_target_has_the_same_digest(target: str) -> None:
    with _native.use_target("scalar"):
        defined = self_test(every_codec())
    with _native.use_target(target):
        here = self_test(every_codec())
    assert here.target == target
    assert here.digest == defined.digest


def test_other_codecs_have_another_digest() -> None:
    assert self_test(every_codec()[:-1]) != self_test(every_codec())
    assert self_test(every_codec()[1:]).digest != self_test(every_codec()).digest


def test_a_broken_bound_is_found() -> None:
    done = self_test([Identity(), Careless()])
    assert done.complaints == ("identity: expected an error of at most 0.25, got 0.5",)
    finding = check_kernels(done)
    assert finding.result == "FAIL"
    assert "set GRADWIRE_TARGET=scalar" in finding.detail


@pytest.mark.skipif(len(_native.available_targets()) < 2, reason="this machine has the scalar target only")
def test_targets_that_differ_are_found() -> None:
    with _native.use_target(_native.available_targets()[-1]):
        (complaint,) = self_test([Moody()]).complaints
    assert "scalar encode differently" in complaint


def test_the_vector_has_both_signs_and_all_scales() -> None:
    x = fixed_vector()
    assert x.dtype == torch.float32
    assert x.abs().max() <= 1
    assert min((x > 0).sum(), (x < 0).sum()) > 1000
    assert {(x.abs() < 2.0**-e).sum().item() > 100 for e in range(14)} == {True}
    assert not torch.equal(fixed_vector(seed=2), x)


def test_the_report_of_a_target_that_is_not_here_says_so() -> None:
    finding = check_kernels(SelfTest("", "", 0, ("GRADWIRE_TARGET: expected scalar, got 'x'",)))
    assert finding.result == "FAIL"
    assert finding.detail.endswith("got 'x'; or unset this variable")


def test_kernels_that_could_not_be_tried_are_a_warning() -> None:
    assert check_kernels(None).result == "warn"
