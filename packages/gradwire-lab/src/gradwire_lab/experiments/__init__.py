"""Experiments: measured answers to questions, each with cells, a record, and a table.

``gradwire experiment NAME`` and ``perform`` run one of ``EXPERIMENTS``.
"""

from typing import Any

from gradwire_lab.experiments.experiment import Catalogue, Experiment
from gradwire_lab.experiments.record import perform

EXPERIMENTS = Catalogue[Experiment[Any]](
    {
        "prediction": f"{__name__}.prediction:EXPERIMENT",
        "loss-prediction": f"{__name__}.loss_prediction:EXPERIMENT",
        "scaling": f"{__name__}.scaling:EXPERIMENT",
        "line-share": f"{__name__}.line_share:EXPERIMENT",
        "training-speed": f"{__name__}.training_speed:EXPERIMENT",
        "auto": f"{__name__}.auto:EXPERIMENT",
        "gain": f"{__name__}.gain:EXPERIMENT",
        "weight-delta": f"{__name__}.weight_delta:EXPERIMENT",
        "fine-tuning": f"{__name__}.fine_tuning:EXPERIMENT",
        "a2dtwp": f"{__name__}.a2dtwp:EXPERIMENT",
        "smart-nic": f"{__name__}.smart_nic:EXPERIMENT",
        "software-nic": f"{__name__}.software_nic:EXPERIMENT",
    }
)
"""The experiments, by name, in the order of ``gradwire experiment --list``."""

__all__ = ["EXPERIMENTS", "Experiment", "perform"]
