"""Which plan: enumerate, predict, prune, choose and explain. "No compression" is a plan, too."""

from gradwire.planner.candidates import Workload
from gradwire.planner.cluster import Input
from gradwire.planner.front import choose_plan
from gradwire.planner.model import load_gradients, record_gradients
from gradwire.planner.predict import Prediction
from gradwire.planner.result import Choice, ScalePoint, hosts_that_pay, scaling

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
