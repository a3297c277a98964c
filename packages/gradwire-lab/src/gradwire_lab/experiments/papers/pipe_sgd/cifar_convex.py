"""Figure 4's row of CIFAR100-Convex: the last layer after a fixed network, trained with each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradwire_lab.experiments.claim import RATIO, Bound, Claim, Published, near, only, within
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.learning import GOALS, Goal
from gradwire_lab.experiments.papers.exhibit import DIGITS, RUN_TIME, chosen, exhibit, paper
from gradwire_lab.experiments.papers.pipe_sgd.figure_4 import BEYOND, EQUAL, OVER_D, OVER_PS, WITHIN
from gradwire_lab.experiments.papers.pipe_sgd.ways import (
    EXACT,
    TRUNCATED,
    MeasuredWays,
    cells_on_lines,
    on_hosts,
)

PLACE = "figure 4"
ACCURACIES = {
    **dict.fromkeys(("PS-Sync", "D-Sync", "D-Sync+T", "Pipe-SGD"), 0.4793),
    "Pipe-SGD+T": 0.4797,
}
SAVED = {("D-Sync", "PS-Sync"): 0.40, ("Pipe-SGD", "D-Sync"): 0.37, ("Pipe-SGD+T", "D-Sync+T"): 0.46}
"""The published share of another method's time that a method saves."""
WORKERS = 2
GOAL = Goal(0.01, 0.25, "the nearest class mean's accuracy on these features")


@dataclass(frozen=True)
class CifarConvexOptions:
    """The options: data set, seeds, ratios of communication to computation, and sizes."""

    on_cifar: bool
    seeds: tuple[int, ...]
    ratios: tuple[float, ...]
    steps: int
    windows: int
    window: int
    batch: int = 50
    lr: float = 0.1


def cells(options: CifarConvexOptions) -> list[Cell]:
    """Return the cells of all methods on each link."""
    from gradwire_lab.experiments.papers.pipe_sgd.tasks import source

    data = source() if options.on_cifar else DIGITS
    return cells_on_lines(data, ACCURACIES, options.seeds, options.ratios, (EXACT, TRUNCATED))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare accuracies with D-Sync's, and the methods' times with each other."""
    data = rows[0]["data"]
    measured = MeasuredWays(rows, GOALS[data] if data == DIGITS else GOAL)
    exact = measured.trainings("D-Sync", "D-Sync")
    lines = (replace(claim, rests_on=exact) for claim in measured.lines(WITHIN))
    found = (*lines, *measured.lost(ACCURACIES, Bound(-EQUAL, EQUAL), PLACE), *_savings(measured))
    return [replace(claim, system=f"on {data}") for claim in found]


def _savings(measured: MeasuredWays) -> Iterator[Claim]:
    """Compare times on each link, because the paper doesn't state the ratio of its link."""
    for ratio in measured.ratios:
        times, link = {run: measured.step_s(run, ratio) for run in ACCURACIES}, f"link of ratio {ratio:g}"
        for (own, other), share in SAVED.items():
            yield Claim(
                f"time saved by {own}, compared with {other}, {link}",
                only(1 - times[own] / times[other]),
                near(share, BEYOND),
                published=Published("section 4", share),
                rests_on=measured.trainings("D-Sync", own, other),
            )
        for other, published in (("D-Sync", OVER_D), ("PS-Sync", OVER_PS)):
            yield Claim(
                f"speed-up of Pipe-SGD+T over {other}, {link}",
                only(times[other] / times["Pipe-SGD+T"]),
                within(published, BEYOND),
                unit=RATIO,
                published=Published(PLACE, published),
                rests_on=measured.trainings("D-Sync", "Pipe-SGD+T", other),
            )


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, CIFAR100-Convex",
    "what accuracy and time does convex training have with each method?",
    cells=cells,
    run=on_hosts("last-layer", WORKERS),
    claims=claims,
    quick=CifarConvexOptions(on_cifar=False, seeds=(0,), ratios=(1.0,), steps=200, windows=3, window=2),
    full=CifarConvexOptions(
        on_cifar=True, seeds=(0, 1, 2), ratios=(0.3, 1.0, 3.0), steps=1500, windows=4, window=5
    ),
    scaling="the last layer is trained on 1,024 features of 50 images per class of CIFAR-100 (in "
    "GRADWIRE_DATA; with --quick, or without these images, of scikit-learn's digits, enlarged). The "
    "features are from a ResNet-20 for CIFAR-10 with fixed weights. Two hosts of a testbed have a "
    "core each, and a global batch of 50. Timed steps run the fixed network; complete training runs "
    "keep its features, which are the same in each epoch. The links' rates are computed from a "
    "plain step and the bytes.",
    origins={
        "ACCURACIES": paper("figure 4"),
        "SAVED": paper("section 4"),
        "WORKERS": chosen("a core for each worker; the paper has four with a GPU each"),
        "on_cifar steps windows window batch": RUN_TIME,
        "seeds": chosen("three, the minimum for an interval"),
        "ratios": chosen(
            "from links on which computation takes longer to links on which communication takes longer"
        ),
        "lr": chosen("for features of variance one and a layer of zeros"),
    },
    seconds=(40, 350),
    version=2,
)
