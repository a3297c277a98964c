"""Figure 14: compression ratio, error, and accuracy of truncations and of the NIC's codec over a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import (
    RATIO,
    Bound,
    Claim,
    Explanation,
    Published,
    at_least,
    at_most,
    near,
    only,
)
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

if TYPE_CHECKING:
    import torch

    from gradwire.codecs import Codec

PLACE = "figure 14"
EXACT, SCALED = "exact", "inceptionn:2^-10, scaled"
BOUNDS = {f"inceptionn:2^-{exponent}": 2.0**-exponent for exponent in (10, 8, 6)}
TRUNCATED = tuple(f"truncate:{bits}" for bits in (16, 22, 24))
SCHEMES = (EXACT, *TRUNCATED, *BOUNDS, SCALED)
DEEP, SMALL = "cnn", "hdc"
RATIOS_AT_10, RATIO_AT_6, RATIO_TRUNCATED = (5.5, 11.6), 14.9, 4.0
LOST_TRUNCATED, LOST = 0.624, 0.02
"""Published: accuracy that 24 truncated bits lose at most, and that any of the bounds does."""
SEVEN_BITS = "the printed format gives 8 bits a last place of 2^-7, whatever the bound is."
NOTHING_LEFT = (
    "gradients of these five layers are so small here that the bound leaves almost nothing of them; with a "
    "scale (the plan's scale=auto), the same codec loses no accuracy."
)


@dataclass(frozen=True)
class Options:
    """Seeds by network, and epochs."""

    seeds: tuple[tuple[str, tuple[int, ...]], ...]
    epochs: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network, seed, and scheme."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [
        {"model": model, "data": data_name(), "seed": seed, "scheme": scheme}
        for model, seeds in options.seeds
        for seed in seeds
        for scheme in SCHEMES
    ]


def codec_of(scheme: str) -> Codec | None:
    """Return a scheme's codec; None for an exact training."""
    from gradwire.codecs import parse
    from gradwire.codecs.wrappers.scaled import Scaled

    if scheme == EXACT:
        return None
    name, _, scaled = scheme.partition(",")
    return Scaled(parse(name)) if scaled else parse(name)


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train; return accuracies, and the ratio and largest error of one gradient in four."""
    from gradwire.experiments.papers.inceptionn.training import dataset, train

    codec = codec_of(cell["scheme"])
    ratios, errors = list[float](), list[float]()

    def watch(step: int, gradient: torch.Tensor, sent: torch.Tensor) -> None:
        errors.append(float((gradient - sent).abs().max()))
        if codec is not None and step % 4 == 0:
            ratios.append(4 * gradient.numel() / codec.encode(gradient).numel())

    done = train(
        dataset(cell["data"]), cell["model"], options.epochs, cell["seed"], of_gradients=codec, watch=watch
    )
    return {"accuracies": list(done.accuracies), "ratios": ratios, "errors": errors}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare ratios, errors, and accuracies."""
    models = [*dict.fromkeys(row["model"] for row in rows)]

    def of(scheme: str, model: str) -> list[Row]:
        return [row for row in rows if (row["model"], row["scheme"]) == (model, scheme)]

    def ratios(scheme: str) -> dict[str, float | None]:
        return {model: fmean(fmean(row["ratios"]) for row in of(scheme, model)) for model in models}

    def lost(scheme: str, model: str) -> float:
        ends = [fmean(row["accuracies"][-1] for row in of(each, model)) for each in (EXACT, scheme)]
        return ends[0] - ends[1]

    return [
        *_ratios(ratios),
        *(
            Claim(
                f"largest error at {bound:g}",
                {model: max(max(row["errors"]) for row in of(scheme, model)) for model in models},
                at_most(bound),
                of_each=True,
                unit="",
                published=Published(PLACE, bound, SEVEN_BITS if bound < 2**-7 else ""),
                otherwise=Explanation(SEVEN_BITS, at_most(2**-7)) if bound < 2**-7 else None,
            )
            for scheme, bound in BOUNDS.items()
        ),
        *_accuracies(models, lost),
    ]


def _ratios(ratios: Any) -> Iterator[Claim]:
    truncated = {scheme: max(ratios(scheme).values()) for scheme in TRUNCATED}
    published = Published(PLACE, RATIO_TRUNCATED)
    yield Claim(
        "ratio of truncations", truncated, at_most(4.01), of_each=True, unit=RATIO, published=published
    )
    yield Claim(
        "ratio at 2^-6, best network",
        only(max(ratios("inceptionn:2^-6").values())),
        at_least(0.95 * RATIO_AT_6),
        unit=RATIO,
        published=Published(PLACE, RATIO_AT_6),
    )
    low, high = RATIOS_AT_10
    yield Claim(
        "ratio at 2^-10",
        ratios("inceptionn:2^-10"),
        Bound(0.8 * low, 1.2 * high),
        of_each=True,
        unit=RATIO,
        published=Published("section VIII-C", RATIOS_AT_10),
        otherwise=Explanation(NOTHING_LEFT, Bound(0.8 * low, 16.0)),
    )


def _accuracies(models: Sequence[str], lost: Any) -> Iterator[Claim]:
    yield Claim(
        "accuracy lost by 24 truncated bits, worst network",
        only(max(lost("truncate:24", model) for model in models)),
        near(LOST_TRUNCATED, 0.1),
        published=Published(PLACE, LOST_TRUNCATED),
        otherwise=Explanation(
            "networks here are small, and the paper finds truncation suitable for simple ones, too.",
            Bound(0.0, 0.2),
        ),
    )
    for scheme in BOUNDS:
        for model in models:
            yield Claim(
                f"accuracy lost by {scheme.partition(':')[2]}, {model}",
                only(lost(scheme, model)),
                at_most(LOST),
                published=Published(PLACE, LOST),
                otherwise=Explanation(NOTHING_LEFT, at_least(0.5)) if model == SMALL else None,
            )
    scaled = {model: lost(SCALED, model) for model in models}
    text = "accuracy lost by 2^-10 with a scale"
    yield Claim(text, scaled, at_most(LOST), of_each=True, published=Published(PLACE, LOST))


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what ratio, error, and accuracy do truncation and the NIC's codec have?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(((DEEP, (1, 2, 3)), (SMALL, (1,))), 10),
    full=Options(((DEEP, (1, 2, 3, 4, 5)), (SMALL, (1, 2, 3))), 30),
    scaling="a small CNN in the place of AlexNet, ResNet-50, and VGG-16, and HDC's five layers; MNIST if "
    "GRADWIRE_DATA has it, else scikit-learn's digits. Both train for the same epochs.",
    seconds=(45, 1200),
)
