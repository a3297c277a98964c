"""A plan as frozen data: codec, algorithm, segments, pipeline, and buckets, with JSON and files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from gradwire import collectives
from gradwire.checkpoints import SUM, is_as_sealed, sealed_text
from gradwire.codecs import DEFAULT_CODEC, TABLE, Codec, Identity, codec_of, parse
from gradwire.codecs.rules import Rule, codec_by_name, read_rules
from gradwire.codecs.spec import check_count
from gradwire.codecs.wrappers import Projected, Scaled, offloadable, scalable
from gradwire.errors import JobError, SpecError, refuse, shown
from gradwire.fields import LATER, Source, named, to_values
from gradwire.files import check_replaceable, read_text, write_files
from gradwire.page import in_notebook
from gradwire.records import read_object
from gradwire.wire import HEADER_NBYTES, MAX_FRAME_NBYTES, TOS

FLOAT_NBYTES = 4
SEGMENT_UNIT_NBYTES = FLOAT_NBYTES * 4096
"""The unit of segments, 4096 floats, so that the blocks of block codecs end where segments end."""
MAX_SEGMENT_NBYTES = FLOAT_NBYTES * (1 << 32) - SEGMENT_UNIT_NBYTES  # frames count elements in 32 bits
MAX_PIPELINE = 1024  # each step in flight stores a gradient, and older gradients are useless
MAX_LANES = 16  # each lane has a thread, and a connection to every rank
MAX_BUCKET_NBYTES = 1 << 48  # no gradient is larger than the memory that a CPU can address
MOST_HOSTS = 256
"""The largest number of hosts for which steps are predicted."""
SCALES = (None, "auto")
"""The values of ``scale``; the default is first."""
EXCHANGES = ("all_reduce", "sharded")
"""The values of ``exchange``; the default is first."""
_SOURCE = Source("a plan", "write the plan with Plan.save")
PLACES = ("host", "device")
"""The values of ``encode_on``; the default is first."""


@dataclass(frozen=True)
class Plan:
    """A plan for exchanging gradients, as frozen data. All ranks must use equal plans.

    Parameters
    ----------
    codec
        The codec that encodes every hop.
    algorithm
        A spec for ``gradwire.collectives.get``, such as ``ring`` or ``hierarchical:4,ring+star``.
    segment_nbytes
        The size of a segment, the part of a chunk that is sent as one frame, in bytes of float32; a multiple
        of 16384, with frames of at most 32 MiB. Smaller segments overlap more of a short chunk's encoding,
        transfer, and decoding, but every frame costs CPU time on both sides.
    pipeline
        The number of steps in flight, 1 to 1024: 1 waits for the step's own gradient, and 2 applies the
        gradient of the previous step.
    bucket_nbytes
        The largest bucket that training exchanges, in bytes of float32; a multiple of 4 up to 2^48. A larger
        parameter has its own bucket. With None, the whole gradient is one bucket. With smaller buckets, the
        exchange begins during backward, but each bucket costs the latency of a whole exchange.
    residual
        Whether training adds this rank's encoding error to the next step's gradient (error feedback); with
        None, the codec decides. Error feedback needs as much memory as one gradient.
    exchange
        ``"all_reduce"``: every rank gets the whole average and updates all weights. ``"sharded"``: every rank
        gets the average of its shard, updates the shard, and sends its weight deltas to the other ranks;
        ``gradwire.sharded.Sharded`` does this with a ring, one bucket, and a pipeline of 1.
    offload
        The codec, or its spec, with which NICs on the path may compress frames; None for no compression in
        NICs. With a codec, every rank sends the values that this codec decodes, as float32, on marked
        connections. All ranks then end with identical bits, whether or not NICs compress (``docs/nic.md``).
        ``codec`` must keep its default, ``identity``.
    scale
        ``"auto"`` multiplies each frame's values by the power of two that brings their largest magnitude just
        below 1, so that the absolute bounds of ``inceptionn`` and ``errbound`` work for gradients of any
        magnitude (``gradwire.codecs.wrappers``); None for no scale.
    encode_on
        The processor that encodes and decodes gradients on a GPU. ``"host"``: the CPU, after a copy of their
        values to host memory, and before a copy back. ``"device"``: the GPU, with Triton kernels, so that
        only payloads cross the bus. The payloads have the same bits. Gradients on the CPU are always encoded
        on the CPU. ``docs/gpu.md`` lists the limits of ``"device"``.
    lanes
        The number of buckets that training exchanges concurrently, 1 to 16, each with its own connections and
        thread. More lanes help if steps have several buckets, and latency is long or cores are idle.
    codecs
        Codecs for some parameters of a model instead of ``codec``: a list of ``{"match": regular expression,
        "codec": codec or spec}``. The first rule whose expression matches part of a parameter's name is used.
        Functions that don't know parameter names reject such a plan; a bare ``Exchange`` uses ``codec``.

    Raises
    ------
    SpecError
        If a value is invalid.
    """

    codec: Codec = field(default_factory=Identity)
    algorithm: str = "ring"
    segment_nbytes: int = 1 << 22
    pipeline: int = 1
    bucket_nbytes: int | None = None
    residual: bool | None = None
    exchange: str = EXCHANGES[0]
    offload: Codec | str | None = None
    scale: str | None = None
    encode_on: str = PLACES[0]
    lanes: int = field(default=1, metadata=LATER)
    codecs: Sequence[Rule | Mapping[str, Codec | str]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Codec):
            refuse("a Codec for codec", self.codec, "parse a spec with gradwire.codecs.parse")
        object.__setattr__(self, "codecs", read_rules(self.codecs))
        self._check_offload()
        self._check_scale()
        collectives.get(self.algorithm)
        check_count("pipeline", self.pipeline, 1, MAX_PIPELINE)
        check_count("lanes", self.lanes, 1, MAX_LANES)
        if self.lanes > 1 and (self.is_sharded or self.algorithm == collectives.backend.NAME):
            what = "a sharded exchange" if self.is_sharded else f"the algorithm {self.algorithm}"
            raise SpecError(f"expected lanes=1 for {what}, got lanes={self.lanes}; omit lanes")
        check_count("segment_nbytes", self.segment_nbytes, SEGMENT_UNIT_NBYTES, MAX_SEGMENT_NBYTES)
        if self.bucket_nbytes is not None:
            check_count("bucket_nbytes", self.bucket_nbytes, FLOAT_NBYTES, MAX_BUCKET_NBYTES)
        if self.residual is not None and not isinstance(self.residual, bool):
            refuse("True, False or None for residual", self.residual, "omit residual to let the codec decide")
        self._check_exchange()
        self._check_place()
        for encoding in self.encodings:
            if (longest_nbytes := frame_nbytes(encoding, self.segment_nbytes)) > MAX_FRAME_NBYTES:
                raise SpecError(
                    f"expected frames of at most {MAX_FRAME_NBYTES} bytes, got up to {longest_nbytes} for a "
                    f"segment of {self.segment_nbytes} bytes with {encoding}; choose a smaller segment_nbytes"
                )

    def _check_offload(self) -> None:
        if (found := codec_of(self.offload, "offload")) is None:
            return
        object.__setattr__(self, "offload", offloadable(found))
        if self.codec != Identity() or self.codecs:
            raise SpecError(
                "expected no codec with offload, because NICs encode, got "
                f"{self.codec if not self.codecs else self.rules[0].codec}; omit codec or offload"
            )

    def _check_scale(self) -> None:
        if self.scale not in SCALES:
            refuse("None or 'auto' for scale", self.scale, "omit scale, or pass 'auto'")
        if self.scale is not None:
            scalable(self.codec if self.offload is None else parse(str(self.offload)))
            for rule in self.rules:
                scalable(rule.codec)

    def _check_exchange(self) -> None:
        if self.exchange not in EXCHANGES:
            refuse(f"one of {', '.join(EXCHANGES)} for exchange", self.exchange, "omit exchange")
        parts = self.algorithm, self.bucket_nbytes, self.pipeline
        if self.is_sharded and parts != ("ring", None, 1):
            raise SpecError(
                "a sharded exchange: expected algorithm='ring', one bucket, and a pipeline of 1, got "
                f"algorithm={self.algorithm!r}, bucket_nbytes={self.bucket_nbytes}, and "
                f"pipeline={self.pipeline}; omit these settings"
            )
        if self.is_sharded:
            self.for_one_codec("a sharded exchange")

    @cached_property
    def encoding(self) -> Codec:
        """The codec of frames, with ``scale``: ``codec``, or an exact codec for the values of ``offload``."""
        chosen = self.codec if self.offload is None else Projected(offloadable(parse(str(self.offload))))
        return self._scaled(chosen)

    def _scaled(self, codec: Codec) -> Codec:
        return codec if self.scale is None else Scaled(codec)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of ``codecs``, parsed."""
        return read_rules(self.codecs)

    @cached_property
    def encodings(self) -> tuple[Codec, ...]:
        """The codecs of all parameters' frames without duplicates, ``encoding`` first."""
        return tuple(dict.fromkeys((self.encoding, *(self._scaled(rule.codec) for rule in self.rules))))

    def encoding_of(self, name: str) -> Codec:
        """Return the codec of the frames of the parameter with this name."""
        return self._scaled(codec_by_name(self.rules, name, self.codec)) if self.codecs else self.encoding

    @property
    def tos(self) -> int:
        """The IP type of service of the connections that carry values, or 0 for the default."""
        return 0 if self.offload is None else TOS

    def _check_place(self) -> None:
        if self.encode_on not in PLACES:
            refuse(f"one of {', '.join(PLACES)} for encode_on", self.encode_on, "omit encode_on")
        if not self.encodes_on_device:
            return
        reasons = {f"{each.name} has no kernels for GPUs": not each.ON_CUDA for each in self.encodings} | {
            "a sharded exchange runs on the host": self.is_sharded,
            "the transport's native all-reduce encodes nothing": self.algorithm == collectives.backend.NAME,
        }
        for reason in [each for each, holds in reasons.items() if holds]:
            raise SpecError(f"encode_on='device' is not possible: {reason}; use encode_on='host'")

    @cached_property
    def encodes_on_device(self) -> bool:
        """Whether gradients are encoded on their device."""
        return self.encode_on == "device"

    def on_host(self, who: str) -> Plan:
        """Return this plan if it encodes on the host, as ``who`` requires, or raise ``SpecError``."""
        if self.encodes_on_device:
            raise SpecError(f"{who}: expected a plan with encode_on='host', got 'device'; change encode_on")
        return self

    @property
    def is_sharded(self) -> bool:
        """Whether each rank updates its shard of the weights."""
        return self.exchange == "sharded"

    def for_whole_gradients(self, who: str) -> Plan:
        """Return this plan for ``who``, which averages whole gradients, or raise ``SpecError`` if sharded."""
        if self.is_sharded:
            raise SpecError(
                f"{who}: expected a plan with exchange='all_reduce', got 'sharded'; change exchange, or "
                "train with gradwire.sharded.Sharded"
            )
        return self

    def for_one_codec(self, who: str) -> Plan:
        """Return this plan for ``who``, which supports one codec and one lane, or raise ``SpecError``."""
        if self.codecs or self.lanes > 1:
            got = "per-parameter codecs; omit codecs" if self.codecs else f"lanes={self.lanes}; omit lanes"
            raise SpecError(f"{who}: expected a plan with one codec and one lane, got {got}")
        return self

    @cached_property
    def places_parameters(self) -> bool:
        """Whether parameters within a bucket have different codecs, or start new blocks of the codec."""
        return bool(self.codecs) or (self.encoding.parameter_unit > 1 and not self.keeps_residual)

    @cached_property
    def keeps_residual(self) -> bool:
        """Whether training keeps residuals, according to ``residual`` or, by default, to the codecs."""
        return any(each.WANTS_RESIDUAL for each in self.encodings) if self.residual is None else self.residual

    @classmethod
    def of(cls, plan: PlanLike, name: str = "plan", **parts: Any) -> Plan:
        """Return the plan for a user's argument, which may be a plan, a codec, a spec, or a file.

        Parameters
        ----------
        plan
            A plan; a codec or its spec, such as ``quantize:8``; or the path of a file written by ``save``: a
            path object, or a string that ends with ``.json``, contains a ``/``, or is the name of a file.
            None means the default codec; ``attach`` passes ``Auto.first_plan`` instead of None.
        name
            The name of the argument in errors.
        parts
            The other fields of the plan if ``plan`` is a codec, a spec, or None; ignored for a plan.

        Raises
        ------
        SpecError
            If the argument has another type, or the file can't be read.
        """
        if plan is None:
            plan = DEFAULT_CODEC
        if isinstance(plan, str) and plan.lstrip().startswith("{"):
            raise SpecError(
                f"expected a plan, a codec, or the path of a file for {name}, got JSON; read the text with "
                "Plan.from_json, or pass a path"
            )
        if isinstance(plan, str) and not _is_path(plan):
            plan = parse(plan)
        if isinstance(plan, Codec):
            return cls(plan, **{"segment_nbytes": plan.SEGMENT_NBYTES} | parts)
        if isinstance(plan, cls):
            return plan
        if isinstance(plan, str | os.PathLike):
            return cls.load(plan)
        raise SpecError(
            f"expected a Plan, a codec, its spec or the path of a plan's file for {name}, got {shown(plan)}; "
            "pass, for example, 'fp8'"
        )

    def to_json(self) -> str:
        """Return the plan as a JSON object, with codecs as their specs."""
        return json.dumps(to_values(self))

    def _repr_html_(self) -> str:
        return in_notebook("Plan", to_values(self))

    def to_text(self) -> str:
        """Return the content of a plan's file: the JSON object with its checksum."""
        return sealed_text(to_values(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan in a JSON text from ``to_json`` of this or an older version.

        Raises ``SpecError`` if the JSON is invalid, or if its checksum differs.
        """
        values = read_object(text, "a plan")
        if not is_as_sealed(values):
            raise SpecError(
                "the plan has changed since it was saved: its checksum differs; save the plan again, or, if "
                f"you changed it by hand, remove {SUM!r} from it"
            )
        return cls.from_values({name: value for name, value in values.items() if name != SUM})

    @classmethod
    def from_values(cls, values: object) -> Plan:
        """Return the plan in the decoded JSON of ``to_json``. Raises ``SpecError`` for invalid values."""
        known = _SOURCE.read(values, named([each.name for each in fields(cls)]))
        return cls(**known | ({"codec": parse(known["codec"])} if "codec" in known else {}))

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the plan as JSON to a file atomically.

        Replaces a file that contains a plan, and any other file only if ``overwrite`` is true. Raises
        ``SpecError`` if the file cannot be written.
        """
        try:
            place = Path(path).resolve()
            check_replaceable(place, overwrite, Plan.load)
            write_files({place: self.to_text().encode()})
        except (OSError, ValueError, JobError) as error:
            raise SpecError(f"the plan cannot be written to {path}: {_reason(error)}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Return the plan in a file written by ``save``. Raises ``SpecError`` with the file's name."""
        try:
            text = read_text(path)
        except UnicodeDecodeError as error:
            fault = f"expected a plan in {path}, got a file that isn't UTF-8"
            raise SpecError(f"{fault}; pass a file from Plan.save") from error
        except (OSError, ValueError) as error:
            fault = f"the plan {path} cannot be read: {_reason(error)}"
            raise SpecError(f"{fault}; pass a file from Plan.save") from error
        try:
            return cls.from_json(text)
        except SpecError as error:
            raise SpecError(f"the plan {path} is not valid: {error}") from error


PlanLike = Plan | Codec | str | os.PathLike[str] | None
"""The types of arguments for ``Plan.of``."""


def _is_path(text: str) -> bool:
    if text.endswith(".json") or "/" in text:
        return True
    return text.partition(":")[0] not in {row.name for row in TABLE} and Path(text).is_file()


def frame_nbytes(codec: Codec, segment_nbytes: int) -> int:
    """Return the size of the longest frame of a segment with this codec."""
    return HEADER_NBYTES + codec.max_nbytes(segment_nbytes // FLOAT_NBYTES)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def bucket_members(counts: Sequence[int], bucket_nbytes: int | None) -> list[range]:
    """Return the buckets as ranges of parameter numbers, in the order of their exchange.

    Backward computes gradients approximately in reverse order of the parameters, so the last parameters are
    in the first bucket. A bucket ends before its float32 values (``counts`` of each parameter) would exceed
    ``bucket_nbytes``; a larger parameter has its own bucket. With None, one bucket has all parameters.
    """
    members: list[range] = []
    stop, size = len(counts), 0
    for first in reversed(range(len(counts))):
        full = bucket_nbytes is not None and FLOAT_NBYTES * (size + counts[first]) > bucket_nbytes
        if full and first + 1 < stop:
            members.append(range(first + 1, stop))
            stop, size = first + 1, 0
        size += counts[first]
    return [*members, range(stop)] if stop else members
