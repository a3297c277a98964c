"""Experiments: measured answers to questions, each with its cells, one record, and a table.

``gradwire experiment NAME`` and ``perform`` run one of ``EXPERIMENTS``.
"""

from types import MappingProxyType
from typing import Any

from gradwire_lab.experiments import (
    a2dtwp,
    auto,
    fine_tuning,
    line_share,
    loss_prediction,
    prediction,
    scaling,
    smart_nic,
    software_nic,
    training_speed,
    weight_delta,
)
from gradwire_lab.experiments.experiment import Experiment
from gradwire_lab.experiments.record import perform

EXPERIMENTS: MappingProxyType[str, Experiment[Any]] = MappingProxyType(
    {
        module.EXPERIMENT.name: module.EXPERIMENT
        for module in (
            prediction,
            loss_prediction,
            scaling,
            line_share,
            training_speed,
            auto,
            weight_delta,
            fine_tuning,
            a2dtwp,
            smart_nic,
            software_nic,
        )
    }
)

__all__ = ["EXPERIMENTS", "Experiment", "perform"]
