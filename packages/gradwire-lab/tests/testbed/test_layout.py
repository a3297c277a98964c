from __future__ import annotations

import pytest

from gradwire_lab.testbed.layout import explain

LINES = [
    "link add name g0 type bridge",
    "link add name h0 type veth peer name eth0",
    "qdisc add dev h0 root handle 1: tbf rate 1bps burst 1 limit 1",
]


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        ("Error: Unknown device type.\nCommand failed -:1\n", "needs bridge, which this kernel lacks"),
        ("RTNETLINK answers: Operation not supported\nCommand failed -:2\n", "needs veth, which"),
        ("Error: Specified qdisc kind is unknown.\nCommand failed -:3\n", "needs sch_tbf, which"),
        (
            "RTNETLINK answers: File exists\nCommand failed -:1\n",
            f"'ip {LINES[0]}' reported: RTNETLINK answers: File exists",
        ),
        ("", "'ip ' reported: no reason was given"),
    ],
)
def test_a_complaint_becomes_a_sentence(complaint: str, sentence: str) -> None:
    told = explain("ip", LINES, complaint)
    assert sentence in told
    assert "\n" not in told
