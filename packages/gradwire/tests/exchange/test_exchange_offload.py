"""Exchanges over NICs that compress, or don't, or compress some pieces only: nobody may notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import collectives
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange import Exchange, Norms
from gradwire.links import Link, loopback
from gradwire.links.base import Sending, Wrapper
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.faulty_link import FaultyLink
from support.meshes import connected, linked, marked, sockets
from support.sums import COMPOSED, SEGMENT_COUNT, bits, check_sum, shares

RunRanks = Callable[..., list[Any]]
ALGORITHMS = [*sorted(collectives.TABLE), *COMPOSED]
OFFLOADS = ["inceptionn:2^-10", "inceptionn:2^-8,bounded", "truncate:20", "bitpack:2"]


class Nics(Wrapper):
    """A link with a NIC that does what its codec does to pieces of floats, and leaves others alone."""

    def __init__(self, inner: Link, spec: str, seed: int) -> None:
        super().__init__(inner)
        self._codec, self._dice = parse(spec), random.Random(seed)
        self.marked_nbytes = 0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Any:
        return self._inner.irecv(source, buffer)

    def isend_marked(self, to: int, frame: torch.Tensor, floats_nbytes: int) -> Sending:
        self.marked_nbytes += floats_nbytes
        sent = frame.clone()
        floats = sent[-floats_nbytes:].clone().view(torch.float32)
        for start in range(0, floats.numel(), 365):  # what a packet holds
            piece = floats[start + 1 : start + 365]
            if self._dice.random() < 0.5 and piece.numel():
                self._codec.decode(self._codec.encode(piece.clone()), piece)
        sent[-floats_nbytes:] = floats.view(torch.uint8)
        return self._inner.isend(to, sent)


def average(link: Link, xs: list[torch.Tensor], plan: Plan) -> tuple[torch.Tensor, torch.Tensor, Norms]:
    """Return the average of a second exchange with a residual, the residual, and its norms."""
    exchange, n = Exchange(link, plan), xs[0].numel()
    residual, norms = torch.zeros(n), Norms([0, n // 3, n])
    for _ in range(2):
        tensor = xs[link.rank].clone()
        exchange.all_reduce(tensor, residual=residual, norms=norms)
    return tensor, residual, norms


@pytest.mark.parametrize("spec", OFFLOADS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_ranks_get_the_bits_of_the_codec_in_software_whatever_nics_do(
    run_ranks: RunRanks, algorithm: str, spec: str
) -> None:
    worlds = range(1, 9) if spec == OFFLOADS[0] else (3, 4)
    for world in worlds:
        xs = shares(world, SEGMENT_COUNT + 777, scale=0.02)
        links = [Nics(link, spec, link.rank) for link in loopback(world, 10.0)]
        offloaded = Plan(algorithm=algorithm, segment_nbytes=SEGMENT_UNIT_NBYTES, offload=spec)
        software = Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)
        found = run_ranks(world, average, xs, offloaded, links=links)
        wanted = run_ranks(world, average, xs, software)
        for (tensor, residual, norms), (its_tensor, its_residual, its_norms) in zip(
            found, wanted, strict=True
        ):
            assert torch.equal(bits(tensor), bits(found[0][0]))
            assert torch.equal(bits(tensor), bits(its_tensor))
            assert torch.equal(bits(residual), bits(its_residual))
            assert torch.equal(norms.sums, its_norms.sums)
        assert world == 1 or any(link.marked_nbytes for link in links)


def test_the_sum_is_within_the_codecs_bound(run_ranks: RunRanks) -> None:
    def total(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, Plan(segment_nbytes=SEGMENT_UNIT_NBYTES, offload=OFFLOADS[1])).all_reduce(
            tensor, False
        )
        return tensor

    xs = shares(4, 5000, scale=0.02)
    check_sum(run_ranks(4, total), xs, parse(OFFLOADS[1]), "ring")


def test_a_nic_with_another_codec_is_an_error_that_says_so(run_ranks: RunRanks) -> None:
    xs = shares(2, 5000, scale=0.5)
    links = [Nics(link, "inceptionn:2^-4", link.rank) for link in loopback(2, 5.0)]
    plan = Plan(segment_nbytes=SEGMENT_UNIT_NBYTES, offload="truncate:8")
    errors = run_ranks(2, average, xs, plan, links=links, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    text = "altered in transit; check that NICs on the link have the codec of projected:truncate:8"
    assert any(text in str(error) for error in errors)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_marked_connections_carry_the_floats_and_plain_exchanges_none(
    run_ranks: RunRanks, algorithm: str
) -> None:
    plan = Plan(algorithm=algorithm, segment_nbytes=SEGMENT_UNIT_NBYTES, offload=OFFLOADS[0])
    xs = shares(3, 3 * SEGMENT_COUNT + 5)

    def rank(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        tensor, plain = xs[link.rank].clone(), xs[link.rank].clone()
        cost = Exchange(link, plan).all_reduce(tensor, average=False)
        assert cost.raw_nbytes == cost.wire_nbytes - 32 * cost.frames
        Exchange(link, Plan()).all_reduce(plain, average=False)
        return tensor, plain

    found = run_ranks(3, rank, links=marked(3, 10.0))
    assert all(torch.equal(bits(tensor), bits(found[0][0])) for tensor, _ in found)
    wanted = run_ranks(3, lambda link: average(link, xs, Plan(parse(OFFLOADS[0]), algorithm))[0])
    assert wanted[0].numel() == found[0][0].numel()
    exact = torch.stack(xs).double().sum(0)
    assert (found[0][1].double() - exact).abs().max() < 1e-6


def test_a_link_whose_connections_are_not_marked_is_refused() -> None:
    plan = Plan(offload=OFFLOADS[0])
    links = sockets(2, 5.0)
    text = r"marked for offload inceptionn:2\^-10, got a SocketLink with unmarked connections; .* tos=0x28"
    with pytest.raises(LinkError, match=text):
        Exchange(links[0], plan)
    wrapped = [FaultyLink(link, []) for link in marked(2, 5.0)]
    with pytest.raises(LinkError, match="got a FaultyLink with unmarked connections; create a"):
        Exchange(wrapped[0], plan)
    Exchange(linked(connected(1), 5.0)[0], plan)  # alone, nothing is sent
    for link in (*links, *wrapped):
        link.close()
