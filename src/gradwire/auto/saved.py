"""The file with the last decision of a run, from which the next run of the same model starts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from gradwire.auto.choice.decision import Decision
from gradwire.checksum import SUM, check_sealed, sealed
from gradwire.errors import GradwireError
from gradwire.files import write_files
from gradwire.machine import machine_id
from gradwire.records import make_record, read_record, to_json
from gradwire.version import version

SCHEMA = "gradwire.auto/1"
_SEALED = ("key", "decision", SUM)
_LOG = logging.getLogger("gradwire")


def fingerprint(shapes: Sequence[Sequence[int]], world: int, way: str) -> str:
    """Return what a decision is for: parameters, ranks, a way to exchange them, a machine, and a version."""
    facts = json.dumps([[*map(list, shapes)], world, way, machine_id(), version()])
    return hashlib.sha256(facts.encode()).hexdigest()


def load(place: str, key: str) -> Decision | None:
    """Return the decision in a file; None if there is none for this key, or none that can be read."""
    path = Path(place)
    if not path.exists():
        return None
    try:
        record = read_record(path, SCHEMA, "decision", "leave it out, and the run measures anew")
        check_sealed({name: record[name] for name in _SEALED if name in record}, f"the fields of {path}")
        return Decision.from_json(json.dumps(record.get("decision"))) if record.get("key") == key else None
    except GradwireError as error:
        _LOG.warning("the run chooses its plan anew: %s", error)
        return None


def save(place: str, key: str, decision: Decision) -> None:
    """Write a decision to a file, all or nothing; a file that cannot be written is a warning."""
    fields = sealed({"key": key, "decision": json.loads(decision.to_json())})
    try:
        write_files({Path(place): to_json(make_record(SCHEMA, fields)).encode()})
    except GradwireError as error:
        _LOG.warning("the chosen plan is not kept for the next run: %s", error)
