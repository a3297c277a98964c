"""FSDP2 in one line: the reduce-scatter of its gradients and the all-gather of its weights, encoded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import nn

from gradwire import codecs, collectives
from gradwire.autotune.contract import SHARDS
from gradwire.autotune.decision import Decision
from gradwire.autotune.estimate import Estimate
from gradwire.autotune.pilot import Pilot, Recorder
from gradwire.autotune.saved import State
from gradwire.autotune.settings import Auto
from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.codecs import Codec, Identity
from gradwire.costs import ExchangeCost
from gradwire.deferred import outside_inference
from gradwire.errors import AttachError, SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.fields import Source, mapping, to_values
from gradwire.fsdp.comms import FsdpMeter, GatherWeights, Office, ReplicaGroup, ScatterGradients
from gradwire.fsdp.links import Links, Purpose
from gradwire.fsdp.steering import Steering, world_group
from gradwire.fsdp.units import Unit, UnitLayouts, units_of
from gradwire.plan import Plan, PlanLike
from gradwire.sync.agreement import agree
from gradwire.sync.buckets import float_shape
from gradwire.sync.connect import check_initialised, check_timeout
from gradwire.sync.deltas import Deltas, weight_codec_of
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.residual import AUTO, Residuals

_SOURCE = Source("a state of FSDP's residuals", "load what state_dict returned on this rank", StateError)


class AttachedFsdp:
    """What ``attach_fsdp`` has put into a module, until ``close``.

    Attributes
    ----------
    weights
        The codec of the weights; None where FSDP gathers them itself.
    ledger
        Bytes, seconds and bypasses by module. Its steps end with the backward passes that reduce gradients.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Codec | None,
        ledger: Ledger,
        residuals: Residuals,
        office: Office,
        undo: ExitStack,
    ) -> None:
        self.weights = weights
        self.ledger = ledger
        self._plan = plan
        self._residuals = residuals
        self._office, self._steering = office, office.steering
        self._undo = undo

    @property
    def plan(self) -> Plan:
        """How gradients travel: what all ranks agreed on, or what they have chosen last."""
        return self._plan if self._steering is None else self._steering.plan

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        """With ``"auto"``: the steps before which all ranks took a plan, and what was decided."""
        return [] if self._steering is None else self._steering.decisions

    @outside_inference
    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, to be saved beside its shards; call it between two steps.

        With ``"auto"`` it has what was decided, too.
        """
        chosen = {} if self._steering is None else self._steering.state_dict()
        self._residuals.steps_done = self._office.step
        return sealed({"residuals": self._residuals.state_dict(), **chosen})

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt what ``state_dict`` returned on this rank, in a world of the same size.

        Raises ``StateError``, and changes nothing, for anything else. FSDP cuts gradients differently for
        every number of ranks, so the residuals of one world mean nothing in another.
        """
        given = _SOURCE.fields(state, "residuals", AUTO, SUM)
        residuals = given.get("residuals", mapping)
        chosen = given.get(AUTO, State.from_json, None)
        check_sealed(state, f"the residuals of rank {self._residuals.rank}")
        world = residuals.get("world")
        if isinstance(world, int) and world != self._residuals.world:
            raise StateError(
                f"rank {self._residuals.rank} of {self._residuals.world} cannot use the residuals of a world "
                f"of {world} ranks, for FSDP cuts gradients differently there; go on without them, which "
                "gives up what the last step lost"
            )
        self._residuals.load_state_dict(residuals)
        if self._residuals.steps_done is not None:
            self._office.resume(self._residuals.steps_done)
        if self._steering is not None and chosen is not None:
            self._steering.load(chosen)

    @outside_inference
    def estimate(self, rate: str | float | None = None, hosts: int | None = None) -> Estimate | None:
        """Return what a step would take elsewhere: see ``Attached.estimate``. All ranks call it together."""
        if not self._office.recorders:
            self._office.recorders.append(Recorder("FSDP2"))
        links, recorder = self._office.links, self._office.recorders[0]
        with links.using(Purpose.CHOOSE, world_group(), "an estimate") as link:
            ask, plan = (lambda _, call: call(link.exchange)), self.plan
            return recorder.estimate(ask, plan, link.exchange.link.timeout_s, rate, hosts)

    @outside_inference
    def scale_residuals(self, factor: float) -> None:
        """Multiply this rank's residuals: with a loss that is scaled, they are in units of its scale.

        All ranks call it between two steps, whenever the scale changes, with the new scale divided by the
        old one; a factor of 1 does nothing. Raises ``SpecError`` for one that is not above 0 and finite.

        Examples
        --------
        >>> before = scaler.get_scale()  # doctest: +SKIP
        >>> scaler.update()  # doctest: +SKIP
        >>> attached.scale_residuals(scaler.get_scale() / before)  # doctest: +SKIP
        """
        self._residuals.scale(factor)

    def close(self) -> None:
        """Give FSDP its own collectives back and close the connections; may be called twice."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@outside_inference
def attach_fsdp(
    module: nn.Module,
    gradients: Plan | Codec | Auto | str | os.PathLike[str] | None = None,
    weights: Codec | str | None = "identity",
    *,
    timeout_s: float = 30.0,
    ledger: Ledger | None = None,
    strict: bool = False,
) -> AttachedFsdp:
    """Let FSDP2 exchange gradients, and weights, through codecs.

    All ranks call this together, with equal arguments, after ``fully_shard`` and before a forward pass. It
    reaches every FSDP module within ``module`` through ``set_custom_reduce_scatter`` and
    ``set_custom_all_gather``. On a mesh of two dimensions the all-reduce between replicas is encoded, too.

    Gradients and weights in bfloat16 and float16 travel as the float32 of equal value. Those of other dtypes
    go through FSDP's own collectives, and the ledger counts and prints them as bypasses.

    Parameters
    ----------
    module
        A module with at least one ``FSDPModule`` in it, itself included, on CPU or accelerator.
    gradients
        A plan; a codec, or its spec; or the file that ``Plan.save`` or the planner wrote: any path, or a
        string that ends with ``.json`` or holds a ``/``. Gradients are scattered around a ring; the plan's
        algorithm serves between replicas, and its buckets nowhere, for FSDP exchanges one module's gradients
        at a time. By default, or with ``"auto"`` or an ``Auto``, the run measures and chooses a codec itself,
        one for all parameters. All modules must be sharded over all ranks then; where they are not, the
        default is ``fp8``.
    weights
        A codec or its spec. All ranks, the owner of a shard included, compute with the decoded weights; the
        shards that the optimizer updates stay exact. ``identity`` is exact for every dtype. ``delta:fp32`` is
        so, too, and sends what changed since the last all-gather; ``delta:bf16`` does this with weights
        rounded to bfloat16. Both keep all weights in host memory on every rank, so they are for modules with
        ``reshard_after_forward=False``. None leaves FSDP's own all-gather in place.
    timeout_s
        How long any single wait for a peer lasts before it is an error; above 0, at most 1e6.
    ledger
        Where exchanges and bypasses are counted; the caller closes it. By default one of its own.
    strict
        Whether ``backward`` raises ``LossyError`` on all ranks, in the same step, where one of them would
        warn that encoding keeps taking more than half of a parameter's gradient; see ``gradwire.attach``. All
        modules must be on one mesh then, of all ranks.

    Returns
    -------
    AttachedFsdp
        Its ``close`` undoes everything.

    Raises
    ------
    SpecError
        For an invalid plan, codec, or timeout. Nothing has changed, as for the next error.
    AttachError
        For a module without FSDP or attached already, a torch without the extension points, ranks that
        differ or do not come within the timeout, ``strict`` where some ranks share no mesh, and deltas of
        weights that a module frees after forward.
    LossyError
        From ``backward``, where ``strict``. All gradients are reduced then, and the next step can be taken.
    ExchangeError
        From forward and backward passes, when a peer fails: the shards are what the last optimizer step left,
        but FSDP is in the middle of a pass; save them, and begin again.

    Examples
    --------
    >>> import gradwire
    >>> attached = gradwire.attach_fsdp(model, weights="bf16")  # doctest: +SKIP
    """
    who = "attach_fsdp"
    auto = Auto.of(gradients)
    plan = auto.first_plan if auto is not None else Plan.of(cast(PlanLike, gradients), "gradients")
    plan = plan.for_whole_gradients(who).for_one_codec(who).on_host(who)
    codec = weight_codec_of(weights, "weights")
    check_timeout(timeout_s)
    check_initialised(AttachError)
    units = units_of(module)
    _check(units, plan, codec, strict)
    other = next((unit for unit in units if not unit.is_over_all), None)
    if other is not None and gradients is None:
        auto = None
    elif other is not None and auto is not None:
        raise AttachError(
            f"gradients='auto' expected modules that are sharded over all {dist.get_world_size()} ranks, got "
            f"{other.name!r} on a mesh of {other.mesh_shape}; name a plan or a codec"
        )
    rank = dist.get_rank()
    books = Ledger(rank) if ledger is None else ledger
    residuals = Residuals(plan, rank, dist.get_world_size())
    links = _connected(units, plan, codec, timeout_s, strict, auto)
    layouts = [unit.layouts(module) for unit in units]
    summed = [each for each in units[0].groups() if each[0] in (Purpose.SCATTER, Purpose.REPLICATE)]
    meter = FsdpMeter(plan, books, layouts, partial(_sum_exactly, links, summed) if strict else None)
    steering = None if auto is None else _steering(auto, module, plan, links, meter, books, timeout_s)
    office = Office(links, books, residuals, meter, steering)
    with ExitStack() as undo:
        if ledger is None:
            undo.callback(books.close)
        undo.callback(links.close)
        # Ranks may compile differently, and what a compiled one traced would not run again.
        forward = torch.compiler.disable(office.forward)  # type: ignore[no-untyped-call]
        undo.callback(module.register_forward_pre_hook(forward, prepend=True).remove)
        for unit, layout in zip(units, layouts, strict=True):
            _install(unit, office, codec, layout, undo)
        return AttachedFsdp(plan, codec, books, residuals, office, undo.pop_all())


def _steering(
    auto: Auto,
    module: nn.Module,
    plan: Plan,
    links: Links,
    meter: FsdpMeter,
    ledger: Ledger,
    timeout_s: float,
) -> Steering:
    shapes = [float_shape(each) for each in module.parameters() if each.requires_grad]
    names = [name for name, _ in module.named_parameters()]
    who = auto, dist.get_rank(), dist.get_world_size()
    pilot = Pilot(*who, shapes, timeout_s, rules=SHARDS, names=names)
    pilot.note = ledger.decided
    return Steering(pilot, plan, links, meter)


def _sum_exactly(
    links: Links, groups: Sequence[tuple[Purpose, dist.ProcessGroup]], words: torch.Tensor
) -> ExchangeCost:
    """Sum floats over all ranks: over the groups that gradients are summed over, one after the other."""
    total = ExchangeCost()
    for purpose, group in groups:
        with links.using(purpose, group, "the ranks' verdicts") as link:
            total += Exchange(link.exchange.link, Plan()).all_reduce(words, average=False)
    return total


def _check(units: list[Unit], plan: Plan, weights: Codec | None, strict: bool) -> None:
    """Refuse what FSDP cannot do with these modules."""
    for unit in units:
        _check_free(unit)
    if plan.pipeline != 1:
        raise SpecError(
            f"FSDP applies every gradient in the step that computes it, but the plan has pipeline="
            f"{plan.pipeline}; use a plan with pipeline=1"
        )
    if plan.algorithm != "ring" and not any(unit.replica_group for unit in units):
        raise SpecError(
            f"FSDP scatters gradients around a ring, and the plan's algorithm {plan.algorithm!r} would serve "
            "between replicas, but this mesh has no replica dimension; use a plan with algorithm='ring'"
        )
    freeing = next((unit.name for unit in units if not unit.stays_whole), None)
    if isinstance(weights, Deltas) and freeing is not None:
        raise AttachError(
            f"weights={str(weights)!r} keeps all weights on every rank, but the module {freeing!r} frees its "
            "own after forward; call fully_shard with reshard_after_forward=False, or use weights='identity'"
        )
    if strict and any(set(unit.mesh_ranks) != set(range(dist.get_world_size())) for unit in units):
        raise AttachError(
            "strict lets all ranks agree, for which every FSDP module must be on one mesh of all of them; "
            "leave strict out, or shard all modules over the whole world"
        )


def _check_free(unit: Unit) -> None:
    taken = (
        isinstance(unit.all_gather, GatherWeights)
        or isinstance(unit.reduce_scatter, ScatterGradients)
        or isinstance(unit.replica_group, ReplicaGroup)
    )
    if taken:
        raise AttachError(
            f"the module {unit.name!r} is attached already; close what attach_fsdp returned first"
        )


def _connected(
    units: list[Unit],
    plan: Plan,
    weights: Codec | None,
    timeout_s: float,
    strict: bool,
    auto: Auto | None,
) -> Links:
    """Meet the members of all groups now, where a rank that does not come is an error in one place."""
    plans = {
        Purpose.GATHER: replace(plan, codec=Identity() if weights is None else weights, algorithm="ring"),
        Purpose.SCATTER: replace(plan, algorithm="ring"),
        Purpose.REPLICATE: plan,
        Purpose.CHOOSE: Plan(),
    }
    wanted = list(
        dict.fromkeys(  # each once, in an order that all ranks share
            each
            for unit in units
            for each in unit.groups()
            if each[0] is not Purpose.GATHER or weights is not None
        )
    )
    facts = {
        **{name: str(part) for name, part in to_values(plan).items()},
        **codecs.origins(plan),
        **collectives.origins(plan),
        **({} if auto is None else auto.facts),
        "weights": str(weights),
        "strict": str(strict),
        "modules": ", ".join(unit.name for unit in units),
    }
    if auto is not None:
        wanted.append((Purpose.CHOOSE, world_group()))
    for group in dict.fromkeys(group for _, group in wanted):
        agree(group, facts, timeout_s)
    links = Links(plans, timeout_s)
    try:
        for purpose, group in wanted:
            links.connect(purpose, group)
    except BaseException:
        links.close()
        raise
    return links


def _install(
    unit: Unit, office: Office, weights: Codec | None, layouts: UnitLayouts, undo: ExitStack
) -> None:
    """Put the exchanges where FSDP finds them, and note how to take them out."""
    if weights is not None:
        put, before = unit.module.set_custom_all_gather, unit.all_gather
        put(GatherWeights(f"{unit.name}.weights", office, before, weights))
        undo.callback(put, before)
    put, before = unit.module.set_custom_reduce_scatter, unit.reduce_scatter
    put(ScatterGradients(f"{unit.name}.gradients", office, before, layouts))
    undo.callback(put, before)
    if unit.replica_group is not None:
        group = unit.replica_group
        unit.set_replica_group(ReplicaGroup(f"{unit.name}.replicas", office, group, layouts))
        undo.callback(partial(unit.set_replica_group, group))
