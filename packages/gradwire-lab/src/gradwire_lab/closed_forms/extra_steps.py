"""The extra steps of runs with lossy or stale gradients, and the planner's factors derived from them.

``python bench/steps_to_loss.py`` trains the runs and prints the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev

from gradwire.planner.loss import Calibration, Effect


@dataclass(frozen=True)
class MethodRun:
    """The result of a method on a task, compared with exact training on the same batches.

    ``added`` is the noise that ``added_noise`` predicts; ``extra`` is the share of extra steps, over seeds.
    """

    task: str
    method: str
    added: float
    extra: float
    spread: float

    @property
    def kind(self) -> str:
        """The name of the effect in a ``Calibration``."""
        if not self.added:
            return "stale"
        if self.method.endswith("+residual"):
            return "residual"
        return "dropped" if self.method.startswith("topk") else "noise"


RUNS: tuple[MethodRun, ...] = (
    MethodRun("digits-mlp", "ecsq:0.5", 0.03449, 0.0335, 0.0103),
    MethodRun("digits-mlp", "ecsq:1", 0.12579, 0.0552, 0.0337),
    MethodRun("digits-mlp", "ecsq:2", 0.43352, 0.1446, 0.0222),
    MethodRun("digits-mlp", "quantize:4", 0.06945, 0.038, 0.014),
    MethodRun("digits-mlp", "errbound:rel=0.25", 0.01637, 0.0398, 0.0063),
    MethodRun("digits-mlp", "topk:0.3", 0.0231, 0.1017, 0.0019),
    MethodRun("digits-mlp", "quantize:4 +residual", 0.06945, 0.029, 0.0083),
    MethodRun("digits-mlp", "topk:0.1 +residual", 0.28134, 0.1988, 0.0393),
    MethodRun("digits-mlp", "identity K=2", 0, 0.0303, 0.0148),
    MethodRun("digits-cnn", "ecsq:0.5", 0.03491, 0.0821, 0.0194),
    MethodRun("digits-cnn", "ecsq:1", 0.13494, 0.1995, 0.0527),
    MethodRun("digits-cnn", "ecsq:2", 0.49808, 0.4986, 0.0092),
    MethodRun("digits-cnn", "quantize:4", 0.06774, 0.1396, 0.0526),
    MethodRun("digits-cnn", "errbound:rel=0.25", 0.01961, 0.0495, 0.0249),
    MethodRun("digits-cnn", "topk:0.3", 0.08269, 0.2164, 0.0375),
    MethodRun("digits-cnn", "quantize:4 +residual", 0.06774, 0.1384, 0.0373),
    MethodRun("digits-cnn", "topk:0.1 +residual", 0.45755, 0.5302, 0.0262),
    MethodRun("digits-cnn", "identity K=2", 0, 0.0361, 0.0122),
    MethodRun("gpt", "ecsq:0.5", 0.01953, 0.055, 0),
    MethodRun("gpt", "ecsq:1", 0.06814, 0.176, 0),
    MethodRun("gpt", "ecsq:2", 0.21739, 0.512, 0),
    MethodRun("gpt", "quantize:4", 0.05794, 0.137, 0),
    MethodRun("gpt", "errbound:rel=0.25", 0.01842, 0.086, 0),
    MethodRun("gpt", "topk:0.3", 0.00989, 0.198, 0),
    MethodRun("gpt", "quantize:4 +residual", 0.05794, 0.189, 0),
    MethodRun("gpt", "topk:0.1 +residual", 0.05434, 0.527, 0),
)
"""The runs of three tasks; the GPT has one seed, so its ``spread`` is 0."""


def calibrate(runs: Iterable[MethodRun]) -> Calibration:
    """Return the effects fitted to the runs, on a logarithmic scale, because tasks differ by factors."""
    kinds: dict[str, list[MethodRun]] = {"noise": [], "dropped": [], "residual": [], "stale": []}
    for run in runs:
        kinds[run.kind].append(run)
    power = _slope(kinds["noise"])
    shares = [run.extra for run in kinds.pop("stale")]
    effects = {
        kind: _geometric([run.extra / run.added**power for run in found]) for kind, found in kinds.items()
    }
    return Calibration(power, stale=Effect(fmean(shares), pstdev(shares)), **effects)


def _slope(runs: list[MethodRun]) -> float:
    """Return the slope of log extra over log added, with an intercept for each task."""
    above = below = 0.0
    for task in {run.task for run in runs}:
        points = [(math.log(run.added), math.log(run.extra)) for run in runs if run.task == task]
        means = [fmean(each) for each in zip(*points, strict=True)]
        above += sum((x - means[0]) * (y - means[1]) for x, y in points)
        below += sum((x - means[0]) ** 2 for x, _ in points)
    return above / below if below else 1.0


def _geometric(factors: list[float]) -> Effect:
    logs = [math.log(each) for each in factors]
    factor = math.exp(fmean(logs))
    return Effect(factor, factor * math.expm1(pstdev(logs)))
