from pathlib import Path

import pytest
from amaranth import Cat, Module, Mux

from gradwire_gateware.packer import Packer
from gradwire_gateware.stream import first_bytes
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Marked, Watched, counterexample


class PacksWithoutGaps(Claim):
    """Every byte of a packet's groups leaves in its place, for all lengths of groups and all stalls."""

    def __init__(
        self, size: int, most: int, step: int = 1, latency: int = 4, *, are_wide: bool = False
    ) -> None:
        super().__init__()
        self._size, self._most, self._step, self._latency = size, most, step, latency + are_wide
        self._are_wide = are_wide
        bits = most.bit_length()
        self._data, self._count, self._last = (
            self.given("data", 8 * most),
            self.given("count", bits),
            self.given("last", 1),
        )
        self._valid, self._ready = self.given("valid", 1), self.given("ready", 1)
        self._chooses, self._index = self.given("chooses", 1), self.given("index", bits)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        m.submodules.packer = packer = Packer(8 * self._size, self._most, self._step, are_wide=self._are_wide)
        count = Mux(self._count > self._most, self._most, self._count)
        count = Mux(self._last, count, (count & ~(self._step - 1))[: len(self._count)])
        mask = first_bytes(count, self._most)
        data = [self._data.word_select(at, 8) & mask[at].replicate(8) for at in range(self._most)]
        m.d.comb += [
            packer.data.eq(Cat(data)),
            packer.count.eq(count),
            packer.last.eq(self._last),
            packer.valid.eq(self._valid),
            packer.m_axis.tready.eq(self._ready),
        ]
        marked = Marked(m)
        marked.choose(
            packer.valid & packer.ready, self._chooses, packer.data, self._index, packer.count, packer.last
        )
        watched = Watched(m, marked, packer.m_axis)
        never_waits = packer.ready | ~self._ready if self._step == self._most else 1
        m.d.comb += self.holds.eq(watched.holds(self._latency) & never_waits)
        return m


FEW = [(4, 6, 1, 4), (2, 5, 1, 5), (4, 2, 2, 5)]
MORE = [(4, 6, 1, 8), (2, 5, 1, 8), (4, 3, 1, 8), (32, 34, 1, 4), (4, 2, 2, 9), (8, 6, 2, 6)]


@pytest.mark.parametrize(("size", "most", "step", "cycles"), FEW + MORE if EXHAUSTIVE else FEW)
def test_groups_are_packed_without_gaps(size: int, most: int, step: int, cycles: int, tmp_path: Path) -> None:
    assert counterexample(PacksWithoutGaps(size, most, step), tmp_path, cycles) is None


WIDE = [(2, 5, 1, 6), (4, 6, 1, 5), (4, 2, 2, 6)]
MORE_WIDE = [(4, 6, 1, 8), (2, 5, 1, 8), (4, 2, 2, 9), (8, 6, 2, 6)]


@pytest.mark.parametrize(("size", "most", "step", "cycles"), WIDE + MORE_WIDE if EXHAUSTIVE else WIDE)
def test_wide_groups_are_packed_without_gaps(
    size: int, most: int, step: int, cycles: int, tmp_path: Path
) -> None:
    assert counterexample(PacksWithoutGaps(size, most, step, are_wide=True), tmp_path, cycles) is None


def test_a_claim_that_is_wrong_is_refuted(tmp_path: Path) -> None:
    assert counterexample(PacksWithoutGaps(2, 5, latency=1), tmp_path, 4) is not None
