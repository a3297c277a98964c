"""Which plan: enumerate, predict, prune, choose and explain. "No compression" is a plan, too."""

from gradwire.planner.choice import Choice, Input
from gradwire.planner.planning import choose_plan
from gradwire.planner.predict import Prediction
from gradwire.planner.record import load_gradients, record_gradients
from gradwire.planner.scaling import ScalePoint, hosts_that_pay, scaling
from gradwire.planner.workload import Workload

__all__ = [
    "Choice",
    "Input",
    "Prediction",
    "ScalePoint",
    "Workload",
    "choose_plan",
    "hosts_that_pay",
    "load_gradients",
    "record_gradients",
    "scaling",
]
