"""Every reader of saved data reads the states of the version before the split as that version did.

Commit 5d7ef2d3 wrote ``states.pt``, one state for each reader, and ``states.json``, what it read from them.
Neither is written anew. A reader with a different name or number is entered in ``RENAMED``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.autotune.survey import CHOICES
from gradwire.fields import to_values
from gradwire.machine import describe_machine
from support import golden
from support.readers import Reader, holders, small_readers

READ = golden.load("states")
RENAMED = {
    "Attached.load_state_dict#1": "Attached.load_state_dict#2",
    "Attached.load_state_dict#2": "Attached.load_state_dict#6",
    "Settings.of_environment#1": "ScriptSettings.of_text#1",
    "Notes.load#1": "ScriptResult.load#1",
    "Tried.load#1": "ScriptResult.load#2",
    "AttachedFsdp.load_state_dict#1": "Attached.load_state_dict#4",
    "AttachedFsdp.load_state_dict#2": "Attached.load_state_dict#8",
}
"""The reader's name and number before the split -> its name and number today."""
OF_A_PROCESSOR = {"LineRate.load#1", *(f"Method.load_state_dict#{number}" for number in (1, 2, 4))}
"""The states that only the processor that wrote them reads alike: a measured rate, and trained weights."""


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    found: dict[str, Any] = torch.load(golden.FOLDER / "states.pt", weights_only=False)
    return found


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    """Yield the readers by name, ``Class.method`` or ``function``, and the number of that name's state."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with ExitStack() as closing:
        found, count = dict[str, Reader](), Counter[str]()
        for path, reader in [*small_readers(tmp_path_factory.mktemp("golden")), *holders(closing)]:
            *_, owner, name = path.split(".")
            name = f"{owner}.{name}" if owner[:1].isupper() else name
            count[name] += 1
            found[f"{name}#{count[name]}"] = reader
        found["Trial.from_json#1"] = Reader(None, received)
        yield found
    dist.destroy_process_group()


def received(trial: object) -> object:
    """Return the decisions of a trial, which ranks exchanged as JSON before, from a record."""
    found = CHOICES.read(json.dumps(trial).encode())
    return SimpleNamespace(to_json=lambda: json.dumps(to_values(found)))


@pytest.mark.parametrize("key", READ)
def test_a_saved_state_is_read_as_before(
    key: str, states: dict[str, Any], readers: dict[str, Reader]
) -> None:
    writer = states["LineRate.load#1"]["machine"]["processor"]
    if key in OF_A_PROCESSOR and writer != describe_machine()["processor"]:
        pytest.skip(f"written on an {writer}")
    reader = readers[RENAMED.get(key, key)]
    result = reader.load(states[key])
    if key.startswith("HostOffload.load_state_dict"):
        return  # its bits follow from weights that differ in each process
    found = golden.plain(result if reader.look is None else reader.look())
    before = READ[key]
    if key.startswith("Card.from_dict"):
        assert found[1].pop("tcp"), "a setting that older versions did not tell"
    if key.startswith("read_summary"):  # the text of a summary has its lines in a different order
        before, found = sorted(before.splitlines()), sorted(found.splitlines())
    assert golden.difference(before, found) is None


def test_every_state_has_what_was_read_from_it(states: dict[str, Any]) -> None:
    assert states.keys() == READ.keys()
