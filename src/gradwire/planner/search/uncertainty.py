"""The uncertainty of predictions: that of the model, or more if the repeats of the calibration disagree."""

from __future__ import annotations

from gradwire.planner.search.predict import Prediction
from gradwire.planner.search.select import UNCERTAINTY, Selection
from gradwire.timing.replay.environment import Environment

MOST = 0.9
"""The largest uncertainty, because even a noisy measurement allows some comparison."""


def uncertainty_of(selection: Selection, environment: Environment) -> float:
    """Return the relative error that the chosen step, or the best one without compression, may have.

    The cost of codecs and frames in a step is known only as precisely as its repeated measurements agree.
    """
    noise = max(_noise(each, environment) for each in (selection.prediction, selection.uncompressed))
    return min(MOST, max(UNCERTAINTY, noise))


def _noise(prediction: Prediction, environment: Environment) -> float:
    codec = environment.cost(str(prediction.plan.encoding)).disagreement
    seconds = codec * prediction.cost.codec_s
    seconds += environment.host.disagreement * prediction.cost.handling_s
    return seconds / prediction.step_s if prediction.step_s else 0.0
