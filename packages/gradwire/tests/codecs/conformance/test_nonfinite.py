"""What NaN and infinity become, and how many of their neighbours become NaN with them: as each card says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import Plan
from gradwire.codecs import TABLE, Codec, parse
from gradwire.exchange import Exchange
from gradwire.links import Link
from support.every_codec import EVERY, make
from support.project import DOCS

Unit = Callable[[Any, int], int]
ITSELF: Unit = lambda _codec, _n: 1  # noqa: E731
BLOCK: Unit = lambda codec, _n: int(codec.block)  # noqa: E731
CHUNK: Unit = lambda _codec, n: n  # noqa: E731
UNITS: dict[str, Unit] = {
    "identity": ITSELF,
    "lossless": ITSELF,
    "fp16": ITSELF,
    "bf16": ITSELF,
    "inceptionn": ITSELF,
    "errbound": ITSELF,
    "truncate": lambda codec, n: n if codec.dropped_bits >= 24 else 1,
    "bitpack": lambda codec, n: n if codec.kept_bytes == 1 else 1,
    "topk": ITSELF,
    "quantize": BLOCK,
    "bfp": BLOCK,
    "fp8": BLOCK,
    "ecsq": BLOCK,
    "terngrad": CHUNK,
    "projected": ITSELF,
    "scaled": ITSELF,
}
"""Of how many values a single one that is not finite makes NaN, beginning at a multiple of that."""
SAYS = {
    ITSELF: "each independently|changes? no other value|sent exactly, (with all|as the largest)"
    "|^carried exactly, with all|^exact, (as|and preferred to)",
    BLOCK: "NaN or infinity,? (turns|gives) its block.*other blocks are unaffected",
    CHUNK: "NaN or infinity,? (turns|makes) .*whole chunk.* segment",
    UNITS[
        "truncate"
    ]: "(?i)each (value is )?independent.*for k <= 8,? one .*turns the whole chunk.* segment.* into NaN",
    UNITS["bitpack"]: "as (in )?`+truncate`+.*for r = 1,? the whole chunk",
}
"""How cards and pages put it."""


@pytest.fixture(params=EVERY)
def codec(request: pytest.FixtureRequest) -> Codec:
    return make(request.param)


def gradient(n: int) -> torch.Tensor:
    rng = np.random.default_rng(n)
    return torch.from_numpy((rng.laplace(0.0, 1e-2, n) + 1e-3).astype(np.float32))


def decoded(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 7.0)
    codec.decode(codec.encode(x), out)
    return out


def test_one_bad_value_takes_its_unit_with_it_and_no_more(codec: Codec) -> None:
    for n in (1, 20, 3001):
        for at in {0, n // 2, n - 1}:
            for bad in (math.nan, math.inf, -math.inf):
                check(codec, n, at, bad)


def check(codec: Codec, n: int, at: int, bad: float) -> None:
    x = gradient(n)
    clean = decoded(codec, x)
    x[at] = bad
    y = decoded(codec, x)
    size = UNITS[codec.name](codec, n)
    unit = torch.zeros(n, dtype=torch.bool)
    unit[at // size * size :][:size] = True
    assert y[~unit].isfinite().all()
    if UNITS[codec.name](codec, 2) > 1:
        assert y[unit].isnan().all()
        assert torch.equal(y[~unit], clean[~unit]), "other blocks are as they were"
        return
    assert not math.isfinite(y[at])
    if math.isinf(bad) or codec.name != "truncate":
        assert y[at].item() == bad or (math.isnan(bad) and y[at].isnan())
    error = (y[~unit].double() - x[~unit].double()).abs()
    assert not error.numel() or float(error.max()) <= codec.bound(x)


def test_more_bad_values_than_topk_keeps_take_the_chunk() -> None:
    codec, x = parse("topk:0.1"), gradient(100)
    x[:10] = math.inf
    assert torch.equal(decoded(codec, x), torch.where(x.isinf(), x, 0.0))
    x[10] = math.nan
    assert decoded(codec, x).isnan().all()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_card_and_page_say_so(row: Any) -> None:
    assert row.codec.__doc__ is not None
    card = " ".join(row.codec.__doc__.split()).split("Non-finite values: ")[1].split(" Ratio: ")[0]
    text = (DOCS / "codecs" / f"{row.name}.md").read_text(encoding="utf-8")
    page = " ".join(text.split("## Non-finite values")[1].split("## ")[0].split())
    for where in (card, page):
        assert re.search(SAYS[UNITS[row.name]], where, re.IGNORECASE), where


@pytest.mark.parametrize(("spec", "most"), [("quantize:8,block=16", 16), ("fp8", 256), ("terngrad", 4096)])
def test_an_all_reduce_spoils_one_block_of_the_rank_that_had_it(
    run_ranks: Callable[..., list[Any]], spec: str, most: int
) -> None:
    world, n, at = 3, 60_000, 33_333

    def average(link: Link) -> torch.Tensor:
        x = gradient(n)
        if link.rank == 1:
            x[at] = math.inf
        Exchange(link, Plan(parse(spec), "ring", 16384)).all_reduce(x)
        return x

    results = run_ranks(world, average)
    (places,) = results[0].isnan().nonzero(as_tuple=True)
    assert at in places
    assert len(places) <= most
    assert int(places[-1] - places[0]) == len(places) - 1, "they are one block"
    for other in results[1:]:
        assert torch.equal(other.view(torch.int32), results[0].view(torch.int32))
