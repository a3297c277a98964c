from __future__ import annotations

import json

from gradwire._native import _core
from gradwire.tables import lines
from gradwire_gateware.cli.nic import SCHEMA, WORDS, json_of, table_of

NONE = dict.fromkeys([*_core.nic_count_names(), "overruns"], 0)
COUNTS = {"to_link": {**NONE, "compressed": 7, "raw_empty": 2}, "to_host": {**NONE, "restored": 12345}}


def test_every_counter_has_its_words() -> None:
    assert set(WORDS) == set(NONE)


def test_the_table_has_what_was_counted() -> None:
    assert lines(table_of(COUNTS)) == [
        "NIC                 to the link  to the host",
        "--------------------------------------------",
        "packets compressed            7             ",
        "packets restored                      12345",
        "raw: without data             2             ",
    ] or [line.rstrip() for line in lines(table_of(COUNTS))][2:] == [
        "packets compressed            7",
        "packets restored                       12345",
        "raw: without data             2",
    ]


def test_the_json_has_everything() -> None:
    assert json.loads(json_of(COUNTS)) == {"schema": SCHEMA, **COUNTS}
