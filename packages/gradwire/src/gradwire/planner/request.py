"""The request for a plan, shared by Python, the command line, and records, without an import of torch."""
# ruff: noqa: RUF009 (``_option`` returns a field)

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from gradwire import collectives
from gradwire import fields as kinds
from gradwire.codecs import FREE_OF_SCALE, Codec, codec_of
from gradwire.codecs.spec import check_count, is_real
from gradwire.errors import SpecError, TensorError, refuse, shown
from gradwire.plan import EXCHANGES, FLOAT_NBYTES, MAX_LANES, MOST_HOSTS, SEGMENT_UNIT_NBYTES
from gradwire.planner.candidates import ALGORITHMS, Space, Workload, no_model, offered
from gradwire.timing.environment import CodecCost, CodecPoint
from gradwire.timing.line import HostCost, Line, LineRate
from gradwire.units import parse_duration, parse_rate

ModelSizes = tuple[int, ...]
"""The number of floats in each parameter, in the order of the model."""
if TYPE_CHECKING:
    import torch
    from torch import nn

    Model = int | str | ModelSizes | nn.Module | Iterable[nn.Parameter]
ASSUMED_LATENCY_S = 50e-6
"""The latency that is assumed if only a rate is given; typical of small messages on Ethernet."""
FARTHEST = 64
"""The default number of hosts up to which ``gradwire plan`` predicts the scaling."""
_LARGEST = math.nextafter(math.inf, 0.0)
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_LISTS = ("codecs", "algorithms", "pipelines")
_NAMES = ",".join(name for name in collectives.NAMES if name != "hierarchical")


class Objective(Enum):
    """The time by which plans are compared: one step, or all steps to a loss."""

    STEP = "step"
    LOSS = "loss"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        refuse("'step' or 'loss' for the objective", value, "omit the objective for its default")


def _option(option: str, text: str, unit: str = "", default: Any = None, **more: object) -> Any:
    """Return a dataclass field with its ``gradwire plan`` option, the option's help text, and its unit."""
    metadata = {"option": option, "help": text, "unit": unit, **more}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class PlanRequest:
    """The request for a plan: the model, the hosts and their network, and the allowed plans.

    ``of`` also reads modules, specs of codecs, and lists. Invalid values raise ``SpecError`` or
    ``TensorError`` before anything is measured.

    Parameters
    ----------
    model
        The number of parameters, the sizes of all parameters, or a factory ``package.module:name``. A factory
        returns a module, or a module and a tuple of example inputs, on which the module's times are measured.
    hosts
        The number of hosts that train, from 2 up.
    forward_s, backward_s, update_s
        Seconds of computation in a step. None: measured if a factory returns example inputs, otherwise 0. If
        all computation is 0, the plan with the fastest exchange is chosen.
    gradients
        Gradients of different steps or ranks (``record_gradients``), or their file; they serve to measure
        codecs and the noise scale. None: gradients of a measured factory, or synthetic gradients.
    line, elsewhere
        The link between two hosts: a ``Line``, or a ``LineRate`` or its file from ``gradwire line-rate --json
        FILE``. ``elsewhere`` says whether the file may be from another machine.
    rate, latency
        Instead of ``line``: the rate (``"10gbit"`` or bytes per second) and latency (``"50us"`` or seconds).
    group_size, core_rate
        The number of neighbouring hosts in a group, and the rate of the uplink that a group shares.
    shared_machine
        Whether all hosts are this machine, as in a testbed; None detects a testbed.
    codecs, algorithms
        The allowed codecs and algorithms, in order of preference. None: ``codecs.FREE_OF_SCALE``, and
        ``ALGORITHMS``, with hierarchical if there are groups.
    largest_error
        The largest allowed absolute error of an element of the gradients' sum over all hosts.
    pipelines
        The numbers of steps in flight. ``(1, 2)`` also offers Pipe-SGD: faster, with stale gradients.
    most_lanes
        The largest number of lanes. On links with a small latency, a rank's cores also limit this number.
    objective
        The time to minimize: the step, or the time to a loss. The latter is the step times 1 + the share of
        extra steps due to the codec's noise and staleness. None: the loss if there are gradients and
        ``costs`` is None, otherwise the step.
    scale, nic, sharded_lr
        Further candidates: scales (``"auto"``) for codecs that support them; encoding in NICs with the codec
        ``nic``; ``gradwire.sharded.Sharded`` at this learning rate, which determines its weight deltas.
    most_hosts
        The number of hosts up to which scaling is predicted; 0 for none.
    host, costs
        The costs of frames, and of encodings (``Plan.encoding``) by their specs; None measures them.
    """

    model: int | ModelSizes | str = _option(
        "--model MODEL", "model: parameters (25.6M), or a factory package.module:name", default=MISSING
    )
    hosts: int = _option("--hosts N", f"number of hosts, 2 to {MOST_HOSTS}", "hosts", MISSING, type=int)
    forward_s: float | None = _option("--forward TIME", "forward time (default: a factory's, or 0)", "s")
    backward_s: float | None = _option("--backward TIME", "backward time, which overlaps exchanges", "s")
    update_s: float = _option("--update TIME", "time of the optimizer's step (default: 0)", "s", 0.0)
    gradients: Sequence[torch.Tensor] | Path | None = _option(
        "--gradients FILE", "recorded gradients (default: a factory's, or synthetic)"
    )
    line: Line | LineRate | Path | None = _option(
        "--measured FILE", "measured link, from 'gradwire line-rate --json FILE'"
    )
    elsewhere: bool = _option("--elsewhere", "accept a measured FILE from another machine", default=False)
    rate: str | float | None = _option("--rate RATE", "rate of each host's link, such as 10gbit", "B/s")
    latency: str | float | None = _option("--latency TIME", "latency of each link (default: 50us)", "s")
    group_size: int | None = _option("--group-size N", "hosts that share an uplink", "hosts", type=int)
    core_rate: str | float | None = _option("--core RATE", "rate of each uplink", "B/s")
    shared_machine: bool | None = _option("--shared-machine", "all hosts share this machine (testbed)")
    codecs: tuple[Codec, ...] | None = _option("--codecs LIST", "codecs (default: all with a relative bound)")
    largest_error: float | None = _option(
        "--largest-error X", "error limit of a summed element (default: none)", type=float
    )
    algorithms: tuple[str, ...] | None = _option("--algorithms LIST", f"algorithms (default: {_NAMES})")
    pipelines: tuple[int, ...] = _option(
        "--pipeline K", "steps in flight, for Pipe-SGD (default: 1, no Pipe-SGD)", "steps", (1,), type=int
    )
    most_lanes: int = _option("--lanes K", "most lanes (default: 16)", "lanes", MAX_LANES, type=int)
    objective: Objective | None = _option(
        "--objective WHAT",
        "minimize the time of a 'step', or to a 'loss' (default with --gradients)",
        choices=tuple(each.value for each in Objective),
    )
    scale: Literal["auto"] | None = _option("--scale auto", "scale gradients to absolute bounds, too")
    nic: Codec | None = _option("--nic SPEC", "NICs with this codec, as further candidates")
    sharded_lr: float | None = _option(
        "--sharded LR", "also try Sharded, with this learning rate", type=float
    )
    most_hosts: int = _option(
        "--scale-to N", f"predict scaling to N hosts, 0 for none (default: {FARTHEST})", "hosts", 0, type=int
    )
    host: HostCost | None = None
    costs: Mapping[str, CodecCost] | None = None

    def __post_init__(self) -> None:
        self._check_model()
        self._check_hosts()
        self._check_line()
        _check_gradients(self.gradients, self.model if isinstance(self.model, str) else self.workload.count)
        self._check_choices()
        host, costs = cast("object", self.host), cast("object", self.costs)
        if host is not None and not isinstance(host, HostCost):
            refuse("a HostCost or None for host", host, "pass the host of a LineRate")
        if costs is not None and not isinstance(costs, Mapping):
            refuse("a mapping from specs to CodecCosts for costs", costs, "pass measure_codecs' result")

    @classmethod
    def of(cls, model: Model, hosts: int, **values: Any) -> PlanRequest:
        """Return the request for a model: a module, its parameters, or any value that the class allows.

        Codecs may be given as specs, and lists as any iterable. Raises as the class does.
        """
        for name in _LISTS:
            if name in values and (values[name] is not None or name == "pipelines"):
                values[name] = _listed(name, values[name])
        if values.get("codecs") is not None:
            found = [codec_of(each, "codecs") for each in values["codecs"]]
            values["codecs"] = tuple(each for each in found if each is not None)
        if isinstance(values.get("line"), (str, os.PathLike)):
            values["line"] = Path(values["line"])
        if isinstance(values.get("gradients"), os.PathLike):
            values["gradients"] = Path(values["gradients"])
        values["nic"] = codec_of(values.get("nic"), "nic")
        if values.get("objective") is not None:
            values["objective"] = Objective(values["objective"])
        return cls(_sizes(model), hosts, **values)

    def _check_model(self) -> None:
        is_factory = isinstance(self.model, str)
        if not (isinstance(self.model, (int, tuple)) or (is_factory and _FACTORY.fullmatch(self.model))):
            raise no_model(self.model)
        Workload.of_count(1, *self._seconds)
        if not is_factory:
            _ = self.workload  # raises for invalid sizes

    def _check_hosts(self) -> None:
        if type(self.hosts) is not int or self.hosts < 2:
            remedy = "pass the number of hosts that train together"
            refuse("at least 2 hosts to exchange gradients", self.hosts, remedy)
        if type(self.most_hosts) is not int or self.most_hosts < 0:
            refuse("most_hosts of at least 0", self.most_hosts, "pass 0 to predict no scaling")
        size = self.group_size
        if size is not None and self.hosts == 2:
            raise SpecError("expected at least 3 hosts to divide into groups, got 2; omit group_size")
        if size is not None and (type(size) is not int or not 1 < size < self.hosts):
            remedy = "pass the number of hosts that share an uplink"
            refuse(f"groups of 2 to {self.hosts - 1} hosts", size, remedy)
        if (size is None) != (self.core_rate is None):
            refuse("both group_size and core_rate, or neither", (size, self.core_rate), "pass both")
        if not (isinstance(self.core_nbytes_per_s, (int, float)) and self.core_nbytes_per_s > 0):
            refuse("a rate above 0 for core_rate", self.core_rate, "pass the uplink's rate, such as 10gbit")

    def _check_line(self) -> None:
        line = cast("object", self.line)
        if not isinstance(line, (Line, LineRate, Path, type(None))):
            remedy = "pass the file that 'gradwire line-rate --json FILE' writes"
            refuse("a Line, a LineRate or its file for line", line, remedy)
        if self.line is not None and (self.rate is not None or self.latency is not None):
            raise SpecError(
                "expected either a measured link or its rate, got both; omit --rate and --latency (rate, "
                "latency), or the measured link"
            )
        if self.line is None and self.rate is None:
            raise SpecError(
                "expected the network's rate, got none; measure the link with 'gradwire line-rate --json "
                "FILE' and pass --measured FILE (line), or pass --rate and --latency (rate, latency)"
            )
        if not isinstance(self.line, Path):
            _ = self.found_line  # raises for invalid rates and latencies

    def _check_choices(self) -> None:
        if self.objective is Objective.LOSS and self.gradients is None:
            raise SpecError(
                "expected recorded gradients for the objective 'loss', got none; record gradients with "
                "gradwire.record_gradients, or choose the objective 'step'"
            )
        Space(self.encodings, self.all_algorithms, self.pipelines, exchanges=self.exchanges)
        check_count("most_lanes", self.most_lanes, 1, MAX_LANES)
        if self.largest_error is not None and not is_real(self.largest_error, 0.0, _LARGEST):
            expected = "a number of at least 0 for the largest error, in units of the summed gradients"
            refuse(expected, self.largest_error, "omit largest_error for no limit")
        if self.sharded_lr is not None and not is_real(self.sharded_lr, kinds.ABOVE_ZERO, 1e3):
            remedy = "pass the optimizer's learning rate"
            refuse("a learning rate above 0 for sharded training", self.sharded_lr, remedy)

    @property
    def _seconds(self) -> tuple[float, float, float]:
        forward_s, backward_s = (0.0 if each is None else each for each in (self.forward_s, self.backward_s))
        return forward_s, backward_s, self.update_s

    @cached_property
    def workload(self) -> Workload:
        """The training step of one host. Raises ``SpecError`` if the model is still a factory."""
        if isinstance(self.model, str):
            expected = f"expected the sizes of a model, got the factory {self.model}"
            raise SpecError(f"{expected}; pass the request to planner.environment.resolve first")
        if isinstance(self.model, int):
            return Workload.of_count(self.model, *self._seconds)
        return Workload(self.model, *self._seconds)

    @cached_property
    def line_rate(self) -> LineRate | None:
        """The measured link, read once from its file, or None if a rate is given. Raises ``SpecError``."""
        if isinstance(self.line, Path):
            return LineRate.load(self.line, elsewhere=self.elsewhere)
        return self.line if isinstance(self.line, LineRate) else None

    @cached_property
    def found_line(self) -> Line:
        """The link of each host. Raises ``SpecError`` if the link's file, rate, or latency is invalid."""
        if isinstance(self.line, Line):
            return self.line
        if self.line_rate is not None:
            return self.line_rate.line
        latency = ASSUMED_LATENCY_S if self.latency is None else self.latency
        latency_s = parse_duration(latency) if isinstance(latency, str) else latency
        return Line(latency_s, _nbytes_per_s(self.rate))

    @property
    def core_nbytes_per_s(self) -> float:
        """The rate of the uplink between groups, or infinity if none is given."""
        return _nbytes_per_s(self.core_rate)

    @cached_property
    def encodings(self) -> tuple[Codec, ...]:
        """The encodings of the candidate plans (``Plan.encoding``), identity first."""
        return offered(FREE_OF_SCALE if self.codecs is None else self.codecs, self.scale, self.nic)

    @property
    def all_algorithms(self) -> tuple[str, ...]:
        """The algorithms of the candidate plans."""
        if self.algorithms is not None:
            return self.algorithms
        return ALGORITHMS if self.group_size is None else (*ALGORITHMS, f"hierarchical:{self.group_size}")

    @property
    def exchanges(self) -> tuple[str, ...]:
        """The values of ``Plan.exchange`` for the candidate plans."""
        return EXCHANGES[:1] if self.sharded_lr is None else EXCHANGES

    def to_values(self) -> dict[str, Any]:
        """Return the request as a JSON object, with the number of tensors in place of gradients."""
        values: dict[str, Any] = kinds.to_values(self)
        if isinstance(values["gradients"], list):
            values["gradients"] = {"tensors": len(values["gradients"])}
        return {name: kinds.spelled(each) for name, each in values.items()}

    @classmethod
    def from_values(cls, values: object) -> PlanRequest:
        """Return the request from the values of ``to_values``. Missing fields have their defaults.

        Raises ``SpecError`` if a value is invalid.
        """
        read = _SOURCE.read(values, kinds.named([each.name for each in fields(cls)], ("model", "hosts")))
        read |= {name: _SOURCE.read(read[name], kind, name) for name, kind in _KINDS.items() if name in read}
        return _SOURCE.read(read, lambda values: cls.of(**values))


def _sizes(model: Any) -> int | ModelSizes | str:
    if isinstance(model, (int, str)) or (isinstance(model, (tuple, list)) and set(map(type, model)) <= {int}):
        return tuple(model) if isinstance(model, list) else model
    from gradwire.planner.model import sizes_of  # needs torch

    return sizes_of(model)


def _listed(name: str, value: object) -> tuple[Any, ...]:
    """Return an iterable as a tuple. Raises ``SpecError`` for a string, whose letters would be the items."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        refuse(f"a list for {name}", value, f"write [{shown(value)}]")
    return tuple(value)


def _check_gradients(gradients: object, count: int | str) -> None:
    """Raise ``TensorError`` unless ``gradients`` is a path, or tensors large enough to time a codec."""
    if gradients is None or isinstance(gradients, Path):
        return
    if not isinstance(gradients, Sequence) or isinstance(gradients, str):
        got = type(gradients).__name__
        raise TensorError(f"expected a list of tensors for gradients, got a {got}; pass [gradient, ...]")
    if not gradients:
        raise TensorError("expected tensors for gradients, got an empty list; record gradients, or pass None")
    fewest = 1 if isinstance(count, str) else min(count, SEGMENT_UNIT_NBYTES // FLOAT_NBYTES)
    shortest = min(each.numel() if hasattr(each, "numel") else fewest for each in gradients)
    if shortest < fewest:
        raise TensorError(
            f"expected at least {fewest} values in each gradient, got {shortest}; record the gradients of "
            "the model itself"
        )


def _nbytes_per_s(rate: str | float | None) -> float:
    found = parse_rate(rate) if isinstance(rate, str) else rate
    return math.inf if found is None else found


_SOURCE = kinds.Source("a plan's request", "request the plan again")


def _quantity(value: object) -> str | float:
    return kinds.line(value) if isinstance(value, str) and value != "inf" else kinds.number(value)


def _line(value: object) -> Line | LineRate | Path:
    if not isinstance(value, Mapping):
        return Path(kinds.line(value))
    line = kinds.of(Line, nbytes_per_s=kinds.number)
    return kinds.of(LineRate, line=line)(value) if "points" in value else line(value)


def _gradients(value: object) -> Path:
    if isinstance(value, Mapping):
        raise SpecError("expected a gradient file, got tensors of another process; save gradients in a file")
    return Path(kinds.line(value))


_POINT = kinds.of(CodecPoint, largest_error=kinds.number)
_COST = kinds.of(CodecCost, points=kinds.rows(_POINT), finished=kinds.optional(_POINT))
_KINDS: Mapping[str, Any] = MappingProxyType(
    {
        "elsewhere": kinds.flag,
        "shared_machine": kinds.optional(kinds.flag),
        "line": kinds.optional(_line),
        "codecs": kinds.optional(kinds.rows(kinds.line)),
        "algorithms": kinds.optional(kinds.rows(kinds.line)),
        "pipelines": kinds.rows(kinds.number),
        "rate": kinds.optional(_quantity),
        "latency": kinds.optional(_quantity),
        "core_rate": kinds.optional(_quantity),
        "gradients": kinds.optional(_gradients),
        "host": kinds.optional(kinds.of(HostCost)),
        "costs": kinds.optional(kinds.keyed(_COST)),
    }
)
"""The kinds of those fields that ``PlanRequest.of`` doesn't itself convert from JSON."""
