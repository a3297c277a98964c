"""Error feedback: residuals, the encoding errors that a rank adds to the next step's gradient.

The method is from Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014. Each rank keeps its
own encoding errors from all hops. So residuals differ between ranks, and each rank saves and loads its own
residuals. Only the sum over all ranks matters, so residuals can be redistributed among any number of ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.codecs.spec import is_real
from gradwire.devices import CPU, device_of, on_host
from gradwire.errors import SpecError, StateError
from gradwire.exchange.feedback import is_finite
from gradwire.fields import ABOVE_ZERO, Source, keyed, real, tensor_of, whole
from gradwire.plan import Plan

GRADIENT = "gradient"
"""The key of a flat gradient's residual, whose parts are the residuals of the gradient's buckets."""

_SOURCE = Source("a state of residuals", "load the state that state_dict returned on this rank", StateError)
_FIELDS = ("rank", "world", "residuals")
SCALE = "scale"  # the field of the loss scale by which residuals are multiplied, if they follow one
STEPS = "steps_done"  # the field of the run's completed steps, which older states lack
AUTO = "auto"  # the field of the decisions of a run that chooses its plan; optional


class Residuals:
    """The residuals of one rank, by key; empty if the plan keeps no residuals.

    Parameters
    ----------
    plan
        The plan, whose ``keeps_residual`` says whether residuals are kept.
    rank, world
        The rank that owns the residuals, and the number of ranks; saved in a state.
    counts
        The number of floats for every possible key, if known. A state with other keys is then refused.
    usual
        The number of floats for the keys that a state always has, so that ``torch.distributed.checkpoint``
        can load it into a new object; ``counts`` by default.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        world: int,
        counts: Mapping[str, int] | None = None,
        usual: Mapping[str, int] | None = None,
    ) -> None:
        self.rank = rank
        self.world = world
        self._keeps, self._on_device = plan.keeps_residual, plan.encodes_on_device
        self._counts, self._usual = counts, usual or counts or {}
        self._tensors: dict[str, torch.Tensor] = {}
        self.scale_followed: float | None = None
        """The loss scale by which residuals are multiplied, if residuals follow a loss scale."""
        self.steps_done: int | None = None
        """The number of the run's completed steps at the time of saving, if the owner sets it."""

    @property
    def kept(self) -> bool:
        """Whether the plan keeps residuals."""
        return self._keeps

    def of(self, key: str, count: int, beside: torch.Tensor | None = None) -> torch.Tensor | None:
        """Return the residual of ``key``: a 1-D float32 tensor of ``count`` elements, initially 0.

        The residual is on the device of the gradient ``beside`` if that device encodes, else on the CPU. The
        same key returns the same tensor, even after ``load_state_dict``. If the plan keeps no residuals, the
        result is None. Raises ``StateError`` if ``count`` differs from an earlier call or a loaded state.
        """
        if not self._keeps:
            return None
        device = CPU if beside is None or not self._on_device else device_of(beside)
        found = self._tensors.get(key)
        if found is not None and found.numel() != count:
            raise _other_count(key, found.numel(), count)
        if found is None or device_of(found) is not device:
            self._tensors[key] = device.zeros(count)
            if found is not None:  # a residual that was loaded before the first gradient
                write(self._tensors[key], on_host(found))
        return self._tensors[key]

    def replace(self, key: str, tensor: torch.Tensor) -> None:
        """Set the residual of ``key`` to ``tensor``, whose length may differ from the old residual's."""
        self._tensors[key] = tensor

    def scale(self, factor: float) -> None:
        """Multiply all residuals by ``factor``, for gradients with a new scale. See ``Attached``.

        No exchange may be running. Raises ``SpecError``, and changes nothing, for a factor that is not above
        0 and finite.
        """
        if not is_real(factor, 0.0, sys.float_info.max) or factor == 0:
            raise SpecError(
                f"expected a finite factor above 0 for the residuals, got {factor!r}; pass the new scale "
                "divided by the old one"
            )
        if factor != 1:
            for tensor in self._tensors.values():
                device_of(tensor).launch(partial(tensor.mul_, factor), [], [tensor])

    def follow(self, scale: float) -> None:
        """Rescale all residuals from the last loss scale to ``scale``; the first call only stores the scale.

        No exchange may be running. A scale that is 0 or not finite, with which no step is possible, changes
        nothing.
        """
        if not is_real(scale, 0.0, sys.float_info.max) or scale == 0:
            return
        if self.scale_followed is not None:
            self.scale(scale / self.scale_followed)
        self.scale_followed = float(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all residuals, with their rank and world. No exchange may be running.

        The state is ``{"rank": int, "world": int, "residuals": {key: tensor}}``, which ``torch.load`` reads
        with ``weights_only``; it includes ``"scale": float`` if residuals follow a loss scale, and
        ``"steps_done": int`` if the owner sets it. A usual key that was never used has zeros.
        """
        usual = self._usual if self._keeps else {}
        unused = {key: torch.zeros(count) for key, count in usual.items() if key not in self._tensors}
        return _state(self.rank, self.world, self._tensors | unused, self.scale_followed, self.steps_done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that ``state_dict`` returned on this rank. Residuals without an entry become 0.

        Raises ``StateError``, and changes nothing, for the state of a different rank or world, for residuals
        of different lengths, and, if the plan keeps no residuals, for any residual.
        """
        residuals = self.check_state(state)
        for key, own in self._tensors.items():
            if key not in residuals:
                write(own, torch.zeros_like(own, device="cpu"))
        for key, tensor in residuals.items():
            write(self._tensors.setdefault(key, torch.empty_like(tensor)), tensor)
        self.scale_followed, self.steps_done = state.get(SCALE), state.get(STEPS)

    def check_state(self, state: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the residuals of a state that ``load_state_dict`` can load. Raises ``StateError``."""
        rank, world, residuals = _read(state)
        if (rank, world) != (self.rank, self.world):
            raise StateError(
                f"rank {self.rank} of {self.world}: expected the residuals of this rank, got the residuals "
                f"of rank {rank} of {world}; load the state of the same rank, or pass all ranks' states to "
                "redivide first"
            )
        if residuals and not self._keeps:
            raise StateError(
                "expected a state without residuals, because the plan keeps none, got residuals of "
                f"{', '.join(sorted(residuals))}; use a plan with residual=True, or omit the state to "
                "discard the residuals"
            )
        strange = set() if self._counts is None else set(residuals) - set(self._counts)
        if strange:
            raise StateError(
                f"expected residuals of this model's parameters, got a residual of {min(strange)}; load the "
                "state into the model that the state was saved from, wrapped and compiled in the same way"
            )
        for key, tensor in residuals.items():
            wanted = None if self._counts is None else self._counts[key]
            if wanted not in (None, tensor.numel()):
                raise _other_count(key, tensor.numel(), wanted)
            own = self._tensors.get(key, tensor)
            if own.numel() != tensor.numel():
                raise _other_count(key, tensor.numel(), own.numel())
        return residuals


def redivide(states: Sequence[Mapping[str, Any]], world: int) -> list[dict[str, Any]]:
    """Return states for ``world`` ranks, at least 1, whose residuals have the same sum as in ``states``.

    ``states`` are the results of ``Residuals.state_dict`` on all ranks, in any order; a missing key is a
    residual of 0. Every new rank gets an equal share, rounded to float32. If the number of ranks is
    unchanged, each rank gets its own residuals, bit for bit. If it changes, a run that chooses its plan
    chooses again. Raises ``StateError`` if a rank's state is missing or occurs twice, or if worlds or lengths
    differ.
    """
    Source("world", "pass the new number of ranks", StateError).read(world, whole(1))
    read = sorted((_read(state) for state in states), key=lambda each: each[0])
    ranks, worlds = [rank for rank, _, _ in read], {world for _, world, _ in read}
    if worlds != {len(read)} or ranks != list(range(len(read))):
        raise StateError(
            f"redivide: expected one state for each rank of one run, got the ranks {ranks} and the world "
            f"sizes {sorted(worlds)}; pass all states of one checkpoint"
        )
    scale = _common(states, SCALE, "residuals with the same loss scale")
    steps = _common(states, STEPS, "states with the same number of completed steps")
    if len(read) == world:
        chosen = {state["rank"]: {AUTO: state[AUTO]} for state in states if AUTO in state}
        own = (
            _state(rank, world, residuals, scale, steps) | chosen.get(rank, {}) for rank, _, residuals in read
        )
        return [sealed(each) for each in own]
    sums: dict[str, torch.Tensor] = {}
    for _, _, residuals in read:
        for key, tensor in residuals.items():
            total = sums.setdefault(key, torch.zeros_like(tensor, dtype=torch.float64))
            if total.numel() != tensor.numel():
                raise _other_count(key, tensor.numel(), total.numel())
            total += tensor
    shares = {key: (total / world).float() for key, total in sums.items()}
    return [sealed(_state(rank, world, shares, scale, steps)) for rank in range(world)]


def write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values to a residual, or to a part of it, on its device, in the current stream."""
    device_of(target).launch(partial(target.copy_, values), [values], [target])


def _state(
    rank: int, world: int, residuals: Mapping[str, torch.Tensor], scale: float | None, steps_done: int | None
) -> dict[str, Any]:
    copies = {key: on_host(tensor).clone() for key, tensor in residuals.items()}
    own = {"rank": rank, "world": world, "residuals": copies, SCALE: scale, STEPS: steps_done}
    return {key: value for key, value in own.items() if value is not None}


def _common(states: Sequence[Mapping[str, Any]], field: str, expected: str) -> Any:
    """Return the value of a field that is equal in all states, or None if the states lack the field."""
    values = list(dict.fromkeys(state.get(field) for state in states))
    if len(values) > 1:
        advice = "use the states of all ranks from one checkpoint"
        raise StateError(f"expected {expected} on all ranks, got {values}; {advice}")
    return values[0]


def _read(state: Mapping[str, Any]) -> tuple[int, int, Mapping[str, torch.Tensor]]:
    given = _SOURCE.fields(state, *_FIELDS, SCALE, STEPS, AUTO, SUM)
    rank, world = given.get("rank", whole()), given.get("world", whole(1))
    given.get(SCALE, real(ABOVE_ZERO), 1.0)
    given.get(STEPS, whole(), 0)
    residuals = given.get("residuals", keyed(tensor_of(torch.float32, None)))
    for key, each in residuals.items():
        if not is_finite(each):
            raise StateError(
                f"expected finite values in the residual {key!r}, got a NaN or an infinity; load another "
                "checkpoint, or continue without residuals"
            )
    check_sealed(state, f"the residuals of rank {rank}")
    return rank, world, residuals


def _other_count(key: str, found: int, expected: int) -> StateError:
    return StateError(
        f"expected {expected} elements in the residual {key!r}, got {found}; load the state of the same "
        "model with the same buckets"
    )
