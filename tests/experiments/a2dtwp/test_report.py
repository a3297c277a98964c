from __future__ import annotations

from gradwire.experiments.a2dtwp.report import table
from gradwire.tables import WIDTH, lines
from support.offloaded_rows import row

FLAT = [0.8, 0.8, 0.8, 0.6, 0.6, 0.6]


def test_the_tables_have_each_policy_the_profile_and_the_claims() -> None:
    rows = [
        row("fp32", 2.0, FLAT, transfer_s=0.8),
        row("bf16", 1.6, FLAT),
        row("static:8", 1.0, FLAT, sent_nbytes=1e6),
        row("awp", 1.5, FLAT, transfer_s=0.2),
        row("delta", 1.2, [0.9] * 6),
    ]
    printed = lines(*table(rows))
    assert max(map(len, printed)) <= WIDTH
    split = [line.split() for line in printed]
    assert "vgg, 1.00 M weights, on the link of x86; the error to reach is 61.0 %" in printed
    assert ["static:8", "(oracle)", "8", "400", "1000", "60.0", "58", "58.5", "50.0"] in [
        [*words[:6], words[6], *words[7:]] for words in split if words[:1] == ["static:8"]
    ]
    assert ["delta", "32", "400", "1200", "90.0", "-", "-", "-"] in split
    assert ["transfer", "to", "the", "device", "800", "400", "200", "400"] in split
    assert sum(line.startswith("a batch of vgg on the link of") for line in printed) == 2
    assert any("4.00x" in line and line.endswith("yes") for line in printed)


def test_without_float32_there_is_no_error_to_reach() -> None:
    printed = lines(*table([row("static:8", 1.0, FLAT)]))
    assert "vgg, 1.00 M weights, on the link of x86" in printed
