"""Everything that a choice depends on, for any number of hosts."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs import Codec
from gradwire.plan import EXCHANGES
from gradwire.planner.inputs.budget import Admission, admit
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.loss.steps import StepsToLoss
from gradwire.planner.search.candidates import ALGORITHMS, Space
from gradwire.planner.search.exchange_times import Family
from gradwire.planner.search.predict import Predictor
from gradwire.planner.search.select import Selection, choose
from gradwire.planner.search.uncertainty import uncertainty_of
from gradwire.timing.replay.environment import Environment


@dataclass(frozen=True)
class Query:
    """What is trained, where, and which plans are allowed.

    ``codecs`` are the candidates, before the budget ``largest_error`` (see ``admit``);
    ``environment`` has the costs of all of them. With the gradients' ``noise`` scale, plans are compared by
    the time to a loss; with None by the step. ``exchanges`` are those of ``Space``.
    """

    workload: Workload
    environment: Environment
    codecs: tuple[Codec, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    pipelines: tuple[int, ...] = (1,)
    largest_error: float | None = None
    noise: float | None = None
    exchanges: tuple[str, ...] = EXCHANGES[:1]

    def admissions(self, world: int) -> tuple[Admission, ...]:
        """Return which codecs the budget admits among ``world`` ranks."""
        return tuple(admit(self.codecs, self.environment.codecs, world, self.largest_error))

    def space(self, world: int) -> Space:
        """Return the choices among ``world`` ranks."""
        codecs = tuple(each.codec for each in self.admissions(world) if each.admitted)
        return Space(codecs, self.algorithms, self.pipelines, exchanges=self.exchanges)

    def answer(self, world: int, family: Family | None = None) -> Selection:
        """Return the choice for ``world`` hosts, from 2 up; ``family`` remembers what exchanges take."""
        known = Family(self.environment) if family is None else family
        to_loss = None if self.noise is None else StepsToLoss(self.environment.codecs, self.noise)
        predictor, space = Predictor(self.workload, world, known, to_loss), self.space(world)
        found = choose(predictor, space)
        uncertainty = uncertainty_of(found, self.environment)
        return found if uncertainty == found.uncertainty else choose(predictor, space, uncertainty)
