"""Which plan: enumerate, predict, prune, choose and explain. "No compression" is a plan, too."""

from gradwire.planner.front import choose_plan
from gradwire.planner.inputs.recording import load_gradients, record_gradients
from gradwire.planner.inputs.source import Input
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.result import Choice
from gradwire.planner.scaling import ScalePoint, hosts_that_pay, scaling
from gradwire.planner.search.predict import Prediction

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
