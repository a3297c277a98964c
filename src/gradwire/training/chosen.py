"""What a user may write for a plan or a codec, read."""

from __future__ import annotations

import os

from gradwire.api import DEFAULT_CODEC
from gradwire.codecs import Codec, parse
from gradwire.errors import SpecError
from gradwire.plan import Plan


def plan_of(plan: Plan | Codec | str | os.PathLike[str] | None, name: str, pipeline: int = 1) -> Plan:
    """Return the plan that is meant: by itself, its codec, the codec's spec, or the path of its file.

    A string is a path where it ends with ``.json`` or holds a ``/``. None is the default codec. A codec alone
    is given ``pipeline``; a plan says itself. Raises ``SpecError``, which calls the argument ``name``.
    """
    if plan is None:
        return Plan(parse(DEFAULT_CODEC), pipeline=pipeline)
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Codec):
        return Plan(plan, pipeline=pipeline)
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and (plan.endswith(".json") or "/" in plan)):
        return Plan.load(plan)
    if isinstance(plan, str):
        return Plan(parse(plan), pipeline=pipeline)
    raise SpecError(f"{name} must be a Plan, a codec, its spec or the path of a plan's file, but is {plan!r}")


def codec_of(codec: Codec | str | None, name: str) -> Codec | None:
    """Return the codec that is meant: by itself or its spec; None for None. Raises ``SpecError``."""
    if codec is None or isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        return parse(codec)
    raise SpecError(f"{name} must be a codec, its spec or None, but is {codec!r}")
