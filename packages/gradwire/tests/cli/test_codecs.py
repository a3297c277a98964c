from __future__ import annotations

import pytest

from gradwire.cli import main
from gradwire.cli.codecs import NOTES, Speed, card, measure, specs_of_all, table
from gradwire.codecs import TABLE, parse
from gradwire.tables import Table, lines


def test_every_codec_has_a_line_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codecs", "--no-measure"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == lines(table())
    assert max(len(line) for line in printed) <= 80
    assert [row.name for row in TABLE] == list(NOTES)
    assert [parse(line.split()[0]).name for line in printed[2:]] == list(NOTES)


def test_what_is_measured_has_columns_and_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[int, int, str]] = []

    def measured(specs: list[str], *_: object) -> list[tuple[str, Speed]]:
        told.append((0, len(specs), specs[0]))
        return [(spec, Speed(12.5, 1e10, 2.04e9)) for spec in specs]

    monkeypatch.setattr("gradwire.cli.codecs.measure", measured)
    assert main(["codecs"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    row = next(line for line in printed if line.startswith("fp8"))
    assert row.split() == ["fp8", "12.50", "8.03", "10.0", "2.0", "half", "an", "ulp", "of", "4", "bits"]
    assert main(["codecs", "fp8"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "12.50 typically, 8.03 at most" in said
    assert "10.0 GB/s of float32 to encode, 2.0 to decode and add" in said
    assert told == [(0, len(specs_of_all()), "identity"), (0, 1, "fp8")]


def test_measured_sizes_agree_with_the_formats() -> None:
    shown: list[tuple[int, int, str]] = []
    found = dict(measure(["identity", "bf16", "fp8", "ecsq:0.5"], lambda *each: shown.append(each), {}))
    bits = {spec: round(speed.bits, 2) for spec, speed in found.items()}
    assert (bits["identity"], bits["bf16"], bits["fp8"]) == (32, 16, 8.03)
    assert 1 < bits["ecsq:0.5"] < 5, "an entropy coder's payload is far below its largest"
    assert all(speed.encode > 0 and speed.decode_add > 0 for speed in found.values())
    assert shown[0] == (0, 4, "identity")


@pytest.mark.parametrize("spec", specs_of_all())
def test_every_codec_has_a_card(spec: str) -> None:
    parts = card(parse(spec), None)
    text = "\n".join(lines(*parts))
    for said in (
        "use it",
        "largest error",
        "bits per value",
        "Formula:",
        "Bound:",
        "docs/codecs/",
    ):
        assert said in text, said
    assert "Parameters" not in text
    assert "Examples" not in text
    assert "``" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert any(isinstance(part, Table) for part in parts)
