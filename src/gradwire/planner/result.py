"""The planner's answer: a plan, what it should take, what else there was, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from gradwire._native import target
from gradwire.plan import Plan
from gradwire.planner.explain import explain
from gradwire.planner.inputs.budget import Admission
from gradwire.planner.inputs.source import Input
from gradwire.planner.query import Query
from gradwire.planner.scaling import ScalePoint, hosts_that_pay
from gradwire.planner.search.predict import Prediction
from gradwire.planner.search.select import Selection
from gradwire.records import make_record, to_json

SCHEMA = "gradwire.choice/1"


@dataclass(frozen=True)
class Choice:
    """A chosen plan and how it was chosen; ``gradwire.choose_plan`` makes it.

    ``plan`` is ready for ``gradwire.all_reduce``, ``gradwire.training`` and ``Plan.save``. ``prediction`` is
    what a step with it should take, ``uncompressed`` what one with the fastest plan without compression
    should; ``ranking`` are the predictions that were made, the fastest first.
    """

    hosts: int
    query: Query
    selection: Selection
    admissions: tuple[Admission, ...]
    inputs: tuple[Input, ...] = ()
    scaling: tuple[ScalePoint, ...] = field(default=())

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.selection.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction of the chosen plan."""
        return self.selection.prediction

    @property
    def uncompressed(self) -> Prediction:
        """The prediction of the fastest plan without compression."""
        return self.selection.uncompressed

    @property
    def ranking(self) -> tuple[Prediction, ...]:
        """All predictions, the fastest first."""
        return self.selection.ranking

    @property
    def explanation(self) -> str:
        """Why this plan."""
        return explain(self.selection, self.admissions)

    def to_json(self) -> str:
        """Return everything as readable JSON; ``Plan.from_json`` reads the value of ``plan``."""
        return to_json(self.record())

    def record(self) -> dict[str, object]:
        """Return everything as the fields of a record."""
        fields = {
            "hosts": self.hosts,
            "plan": json.loads(self.plan.to_json()),
            "explanation": self.explanation,
            "prediction": self.prediction.values(),
            "uncompressed": self.uncompressed.values(),
            "objective": "step" if self.query.noise is None else "loss",
            "uncertainty": self.selection.uncertainty,
            "inputs": [asdict(each) for each in self.inputs],
            "codecs": [_admission(each) for each in self.admissions],
            "considered": self.selection.considered,
            "ranking": [each.values() for each in self.selection.ordered],
            "scaling": [_point(each) for each in self.scaling],
            "hosts_that_pay": hosts_that_pay(self.scaling) if self.scaling else None,
        }
        return make_record(SCHEMA, fields, target=target())


def _admission(admission: Admission) -> dict[str, object]:
    return {
        "codec": str(admission.codec),
        "largest_error": admission.error,
        "guaranteed": admission.guaranteed,
        "admitted": admission.admitted,
    }


def _point(point: ScalePoint) -> dict[str, object]:
    return {
        "hosts": point.hosts,
        "step_s": point.step_s,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "plan": None if point.prediction is None else json.loads(point.prediction.plan.to_json()),
    }
