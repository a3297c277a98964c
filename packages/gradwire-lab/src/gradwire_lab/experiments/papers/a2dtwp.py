"""A2DTWP's figures 3 to 5, and tables II and III: errors of narrow networks, times of full-size batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

from gradwire_lab.experiments import a2dtwp
from gradwire_lab.experiments.a2dtwp.measured import NOISE, MeasuredPolicies
from gradwire_lab.experiments.a2dtwp.options import (
    AWP,
    BF16,
    DELTAS,
    DIGITS,
    FP32,
    LINKS,
    NORMALISED,
    STATIC,
    STUCK,
    SYSTEMS,
)
from gradwire_lab.experiments.a2dtwp.report import SHOWN
from gradwire_lab.experiments.claim import (
    RATIO,
    Basis,
    Bound,
    Claim,
    Published,
    at_least,
    at_most,
    within,
)
from gradwire_lab.experiments.experiment import LOSSY, Row
from gradwire_lab.experiments.learning import GOALS, Goal, Trainings
from gradwire_lab.experiments.papers.exhibit import (
    RUN_TIME,
    Exhibit,
    by_name,
    calibrated,
    chosen,
    paper,
    side_by_side,
)

TABLES = {"x86": "table II", "power": "table III"}
RATES = {name: dataclasses.astuple(SYSTEMS[name]) for name in LINKS}
"""The published milliseconds of computation and copies, which determine the links' rates."""
FP32_MS = {
    "x86": {"transfer_s": 153.93, "to_host_s": 68.51, "compute_s": 162.23, "update_s": 54.39},
    "power": {"transfer_s": 39.12, "to_host_s": 17.34, "compute_s": 82.44, "update_s": 41.29},
}
AWP_MS = {
    "x86": {"transfer_s": 52.27, "to_host_s": 73.55, "compute_s": 160.30, "update_s": 52.86},
    "power": {"transfer_s": 12.21, "to_host_s": 17.87, "compute_s": 84.72, "update_s": 42.98},
}
"""The milliseconds of a batch of VGG, by kernel; forward and backward include all layers."""
UNCHANGED = {
    "to_host_s": "transfer to the host",
    "compute_s": "forward and backward",
    "update_s": "update",
}
"""The kernels that AWP doesn't change: a ratio may be anywhere in the range of their published ratios."""
OVERHEAD = {"x86": 0.0105 + 0.0660, "power": 0.0054 + 0.0682}
"""The share of a batch's time that norms, packing, and unpacking take (section V-G)."""
GAIN = {"x86": 0.0618, "power": 0.1191}
"""The published mean share of time that A2DTWP saves, over the networks and batch sizes."""
GAINS = {"x86": (0.0415, 0.0840), "power": (0.0686, 0.1984)}
"""The published range over the networks, ResNet to VGG, of the mean share of time that A2DTWP saves."""
ELAPSED = {"alexnet": (0.990, 0.996), "vgg": (0.907, 0.936), "resnet": (0.765, 0.778)}
"""The published range of A2DTWP's time relative to float32 for equal numbers of epochs, on x86."""
ERROR = 0.02
"""The largest excess of AWP's error over float32's: 1.93 % after two epochs, 0.71 % after eight."""
BEHIND_ORACLE = (0.0097, 0.0472)
"""The share by which AlexNet's time exceeds the oracle's: 10.66 and 6.61 % saved, not 11.52 and 10.82 %."""
DIFFERENT, OF_NETWORKS = 3, 2 / 3
"""Two of three networks must switch at more batches than a fixed schedule, which has three."""
CHANCE = 0.1
NEIGHBOUR = {"cifar10": 0.2875, "digits": GOALS["digits"].known}
"""The accuracy of nearest-neighbour classification, the minimum for a network's known accuracy."""
NOT_TIMED = "no batches in full size were timed; --full times them"
NO_ORACLE = "the oracle needs training runs with all static formats; --full has them"
GROUPS = {"with BatchNorm": (*NORMALISED, "resnet"), "without BatchNorm": (SHOWN,)}
"""The groups of networks that are judged together; table I has no batch normalization in two of the first."""
LONGER = "float32 with another seed for twice as many batches, in this record"
NEAREST = "the nearest neighbour's accuracy on these images; a longer training run has less"


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare gains, errors, and kernels with published figures, and AWP with the other policies."""
    found = MeasuredPolicies(rows)
    on = "on digits" if found.images == DIGITS else ""
    parts: list[Claim] = []
    for name, networks in GROUPS.items():
        group = _Group(found, [model for model in networks if model in found.networks], name, on)
        if group.networks:
            parts += [each for system in LINKS for each in _times(group, system)]
            parts += [*_learning(group), *_elapsed(group)]
    parts += [_stuck(found, model, on) for model in STUCK if model in found.networks]
    for model in (SHOWN, f"{SHOWN}-bn"):
        if model in found.networks:
            parts += [each for system in LINKS for each in _kernels(found, model, system, on)]
    return parts


class _Group:
    """Networks that are judged together, and the labels of claims about them."""

    def __init__(self, found: MeasuredPolicies, networks: Sequence[str], name: str, on: str) -> None:
        self.found, self.networks, self.name, self._on = found, networks, name, on

    def of(self, figure: Callable[[str], float | None]) -> dict[str, float | None]:
        return {model: figure(model) for model in self.networks}

    def label(self, system: str = "") -> str:
        return ", ".join(filter(None, (system, self.name, self._on)))

    def not_timed(self, system: str) -> str:
        """Return the reason why times are missing, or nothing if all networks' batches were timed."""
        each = [self.found.figure(model, FP32, system, "batch_s") for model in self.networks]
        return NOT_TIMED if None in each else ""

    def trainings(self, *policies: str) -> list[Trainings]:
        return [_trainings(self.found, model, policy) for model in self.networks for policy in policies]


def _trainings(found: MeasuredPolicies, model: str, policy: str, expected_failure: str = "") -> Trainings:
    longer, nearest = found.longer.get(model, 0.0), NEIGHBOUR.get(found.images, 1.0)
    goal = Goal(CHANCE, max(longer, nearest), LONGER if longer >= nearest else NEAREST)
    own, exact = found.accuracies(model, policy), found.accuracies(model, FP32)
    return Trainings(f"{model} with {policy}", own, exact, goal, expected_failure)


def _times(group: _Group, system: str) -> Iterator[Claim]:
    """Yield claims about the time to the error, relative to float32, the oracle, and the alternatives."""
    found, not_run = group.found, group.not_timed(system)
    claim = partial(Claim, system=group.label(system))

    def gains(other: str) -> dict[str, float | None]:
        return group.of(lambda model: found.gain(model, AWP, other, system))

    yield claim(
        "time saved by A2DTWP, mean",
        gains(FP32),
        within(GAINS[system], 0.0),
        published=Published("figure 4", GAIN[system]),
        not_run=not_run,
        rests_on=group.trainings(AWP),
    )
    best = {model: found.oracle(model, system) for model in group.networks}
    saved = {
        model: None if name is None else found.gain(model, AWP, name, system) for model, name in best.items()
    }
    has_all = all(found.trainings(model, policy) for model in best for policy in STATIC.values())
    static = [_trainings(found, model, name) for model, name in best.items() if name not in (None, FP32)]
    yield claim(
        "time of A2DTWP beyond the oracle's",
        {model: None if share is None else -share for model, share in saved.items()},
        within(BEHIND_ORACLE, 0.0),
        published=Published("figure 3", BEHIND_ORACLE),
        not_run=not_run or ("" if has_all else NO_ORACLE),
        rests_on=[*group.trainings(AWP), *static],
    )
    for other, others in ((BF16, BF16), (DELTAS[0], BF16)):
        text, learned = f"time saved by A2DTWP, compared with {other}", group.trainings(AWP, others)
        yield claim(text, gains(other), at_least(NOISE), not_run=not_run, rests_on=learned)


def _learning(group: _Group) -> Iterator[Claim]:
    """Yield claims about errors and bits, without times."""
    found = group.found
    claim = partial(Claim, system=group.label(), rests_on=group.trainings(FP32))
    yield claim(
        "error above float32's",
        group.of(lambda model: found.last_error(model, AWP) - found.last_error(model, FP32)),
        at_most(ERROR),
        of_each=True,
        published=Published("section V-F", ERROR, is_limit=True),
    )
    yield claim(
        f"networks whose layers switch at more than {DIFFERENT} different batches",
        group.of(lambda model: float(min(found.switches(model)) > DIFFERENT)),
        at_least(OF_NETWORKS),
    )
    yield claim(
        "training runs in which AWP's threshold is above nearly all changes",
        group.of(lambda model: fmean(LOSSY in row for row in found.trainings(model, AWP))),
        at_most(0.0),
        of_each=True,
    )


def _stuck(found: MeasuredPolicies, model: str, on: str) -> Claim:
    """Return the claim that a network learns although its failure was declared in advance."""
    learned = _trainings(found, model, FP32, STUCK[model])
    text = f"{model} without batch normalization learns in float32: accuracy"
    wanted = at_least(learned.goal.least)
    return Claim(text, {model: fmean(learned.accuracies)}, wanted, on, rests_on=[learned])


def _elapsed(group: _Group) -> Iterator[Claim]:
    """Yield figure 5's claims: the time of the same number of batches, relative to float32."""
    found, not_run = group.found, group.not_timed("x86")
    for model in group.networks:
        published = ELAPSED[NORMALISED.get(model, model)]
        own, exact = (found.seconds(model, policy, "x86") for policy in (AWP, FP32))
        yield Claim(
            f"{model}: time of the same number of batches, over float32's",
            {model: None if own is None or exact is None else own / exact},
            within(published, 0.0),
            group.label(),
            unit=RATIO,
            published=Published("figure 5", published),
            rests_on=[_trainings(found, model, AWP)],
            not_run=not_run,
        )


def _kernels(found: MeasuredPolicies, model: str, system: str, on: str) -> Iterator[Claim]:
    """Yield the claims of tables II and III, for full-size VGG with the bits of a training run."""
    timed = [found.figure(model, policy, system, "batch_s") for policy in (AWP, FP32)]
    claim = partial(
        Claim,
        system=", ".join(filter(None, (system, on))),
        not_run=NOT_TIMED if None in timed else "",
        rests_on=[_trainings(found, model, AWP)],
    )
    published = {
        each: {name: FP32_MS[each][name] / AWP_MS[each][name] for name in FP32_MS[each]} for each in LINKS
    }
    shorter = [each["transfer_s"] for each in published.values()]
    spread = [each[name] for each in published.values() for name in UNCHANGED]
    kernels = [("transfer_s", "transfer to the device, shorter", shorter)]
    kernels += [(name, f"{text}, as long as before", spread) for name, text in UNCHANGED.items()]
    for name, text, ratios in kernels:
        own, before = (found.figure(model, policy, system, name) for policy in (AWP, FP32))
        yield claim(
            f"{model}: {text}",
            {model: None if not own or before is None else before / own},
            Bound(min(ratios), max(ratios)),
            unit=RATIO,
            published=Published(TABLES[system], published[system][name]),
            basis=Basis.ARITHMETIC if name == "to_host_s" else Basis.CALIBRATED,
        )
    own, batch = (found.figure(model, AWP, system, name) for name in ("packing_cpu_s", "batch_s"))
    yield claim(
        f"{model}: norms and packing, of a batch",
        {model: None if own is None or not batch else own / batch},
        Bound(min(OVERHEAD.values()), max(OVERHEAD.values())),
        published=Published(TABLES[system], OVERHEAD[system]),
        basis=Basis.CALIBRATED,
    )


ORIGINS = by_name(
    {
        "FP32_MS AWP_MS": paper("tables II and III"),
        "OVERHEAD": paper("section V-G"),
        "GAIN": paper("figure 4"),
        "GAINS": paper("section V"),
        "ELAPSED": paper("figure 5"),
        "RATES": calibrated("table II and table III, the shares of copies in a batch of VGG in float32"),
        "ERROR": paper("section V-F"),
        "BEHIND_ORACLE": paper("figure 3"),
        "DIFFERENT": chosen("a clock switches all layers at the same three batches, from 8 to 32 bits"),
        "OF_NETWORKS": chosen("two of three networks"),
        "CHANCE": chosen("ten classes"),
        "NEIGHBOUR": chosen("measured on these images, apart from any training"),
        "data_dir": chosen("$GRADWIRE_DATA, else digits, which need no download"),
        "networks": paper("table I, and two of them with batch normalization"),
        "policies": paper("section V-A, with bfloat16 and lossless deltas beside them"),
        "seeds": chosen("a verdict needs three training runs"),
        "images narrower timed_batches timed_size timed_rounds": RUN_TIME,
        "batches": chosen(
            "one epoch to find AWP's threshold, then at least twelve intervals of half an epoch"
        ),
        "timed": paper("table I"),
    }
)


EXHIBIT = Exhibit(
    "a2dtwp",
    "section V",
    dataclasses.replace(
        a2dtwp.EXPERIMENT, run=partial(a2dtwp.run, trainings=side_by_side(a2dtwp.train_cell))
    ),
    a2dtwp.A2dtwpOptions(
        networks=("vgg-bn",),
        policies=(FP32, BF16, STATIC[8], AWP),
        seeds=(1,),
        images=2400,
        batches=520,
        timed=(),
    ),
    a2dtwp.A2dtwpOptions(),
    claims,
    "errors are from networks with an eighth of the paper's channels, on 6,400 CIFAR-10 images of 32 x 32 "
    "pixels (scikit-learn's digits if GRADWIRE_DATA is unset), in batches of 32 (AlexNet 64). Networks "
    "with batch normalization start from the published weights. The other networks start from He's "
    "initialization, because the published deviation of 0.1 makes AlexNet diverge. Milliseconds are from "
    "batches of two 224 x 224 images through the full-size networks, on one core and a simulated device. "
    "The links' rates are set so that VGG's copies in float32 take the published share of its computation. "
    "Each policy has nine batches per link, in three passes in which policies take turns. Norms, packing, "
    "and updates take the host's own time, so their shares of a batch depend on those two images. The time "
    "to the error is the number of the narrow network's batches times the full-size network's "
    "milliseconds; in full size, only ResNet has batch normalization. AWP first measures its threshold in "
    "batches with 32 bits. AWP's kernels are means over the later batches; AWP's times to an error include "
    "the first batches.",
    (80, 5600),
    ORIGINS,
)
