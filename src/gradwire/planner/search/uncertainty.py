"""How uncertain predictions are: as the model is, or more where the repeats of the calibration disagree."""

from __future__ import annotations

from gradwire.planner.search.predict import Prediction
from gradwire.planner.search.select import UNCERTAINTY, Selection
from gradwire.timing.replay.environment import Environment

MOST = 0.9
"""A step that is all noise still says something of the others."""


def uncertainty_of(selection: Selection, environment: Environment) -> float:
    """Return by which share of itself the chosen step, or the best one without compression, may be wrong.

    What codecs and frames take of a step is known no better than the repeats that it was measured by agree.
    """
    noise = max(_noise(each, environment) for each in (selection.prediction, selection.uncompressed))
    return min(MOST, max(UNCERTAINTY, noise))


def _noise(prediction: Prediction, environment: Environment) -> float:
    codec = environment.cost(str(prediction.plan.codec)).disagreement
    seconds = codec * prediction.cost.codec_s
    seconds += environment.host.disagreement * prediction.cost.handling_s
    return seconds / prediction.step_s if prediction.step_s else 0.0
