"""Choose a plan, with or without compression: read the request, measure, rank, and explain.

Names are imported on first use, so that the command line reads a request without importing torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.planner.choice import Choice, ScalePoint, choose, choose_plan, hosts_that_pay, scaling
    from gradwire.planner.environment import Input
    from gradwire.planner.model import load_gradients, record_gradients
    from gradwire.planner.predict import Prediction
    from gradwire.planner.request import PlanRequest

_HOMES = {
    "choice": ("Choice", "ScalePoint", "choose", "choose_plan", "hosts_that_pay", "scaling"),
    "environment": ("Input",),
    "model": ("load_gradients", "record_gradients"),
    "predict": ("Prediction",),
    "request": ("PlanRequest",),
}
__all__ = [
    "Choice",
    "Input",
    "PlanRequest",
    "Prediction",
    "ScalePoint",
    "choose",
    "choose_plan",
    "hosts_that_pay",
    "load_gradients",
    "record_gradients",
    "scaling",
]


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
