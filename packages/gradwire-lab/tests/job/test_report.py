import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gradwire_lab.job.options import JobOptions, Run
from gradwire_lab.job.record import RunResult, step_verdict
from gradwire_lab.job.report import show_report, table


def rows(results: tuple[RunResult, ...]) -> Sequence[Sequence[str]]:
    return table(results)[0].rows


def test_rows_have_milliseconds_megabytes_and_speed_ups(results: tuple[RunResult, ...]) -> None:
    assert rows(results)[0] == (
        "PS-Sync", "87.50", "800.0", "200.0", "0.0", "400.0", "1.00", "1.0x", "1.0x", "0.2x",
    )  # fmt: skip
    assert rows(results)[3][-4:] == ("0.25", "4.0x", "16.0x", "4.0x")
    assert rows(results[3:])[0][-2:] == ("0.25", "4.0x"), "alone it is compared with nothing"


def test_the_table_fits_a_terminal_of_80_columns(
    options: JobOptions,
    results: tuple[RunResult, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_report(options, results)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "digits, mlp: 4 workers, 100mbit links, 30 steps"
    assert any(line.split()[:3] == ["PS-Sync", "87.50", "800.0"] for line in lines)
    assert any("Pipe-SGD + quantize:8" in line for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_a_comparison_with_ddp_begins_with_a_verdict_and_has_times_to_equal_loss(
    options: JobOptions, on_ddp: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row[-2:] for row in rows(on_ddp)] == [
        ("8.00", "1.0x"),
        ("4.00", "2.0x"),
        ("2.00", "4.0x"),
        ("1.60", "5.0x"),
    ]
    high = tuple(replace(epoch, held_out_loss=0.6) for epoch in on_ddp[3].epochs)
    assert rows((*on_ddp[:3], replace(on_ddp[3], epochs=high)))[3][-2:] == ("-", "-")
    show_report(replace(options, link="1gbit"), on_ddp)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["attach", "+"] and line.endswith("2.00  4.0x") for line in lines)
    said = " ".join(printed.split())
    assert "held-out loss is 0.5000, the median of the last 3 evaluations of DDP," in said
    assert said.startswith(
        "attach + fp8 is 4.0 times as fast as DDP and 2.0 times as fast as DDP + bf16 hook,"
    )
    assert "differences below 15 % are ties." in said
    assert said.endswith("gradwire plan --model 25.6M --hosts 4 --rate 1gbit")


def test_the_reasons_of_choices_are_for_those_who_ask(
    options: JobOptions, on_ddp: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    tried = tuple((step, f"plan {step}, on trial") for step in range(6, 36, 5))
    results = (*on_ddp[:2], replace(on_ddp[2], decided=tried), on_ddp[3])
    show_report(options, results)
    printed = capsys.readouterr().out
    assert "on trial" not in printed
    assert "Plans were chosen or tried 6 times; --verbose and the page say why." in printed
    show_report(options, results, verbose=True)
    printed = capsys.readouterr().out
    assert printed.count("on trial") == 6
    assert "attach + fp8: from step 6 on, plan 6, on trial" in printed


def test_a_short_comparison_with_ddp_fills_its_columns_and_says_what_it_was_too_short_for(
    on_ddp: tuple[RunResult, ...],
) -> None:
    runs = [
        each.run if each.run.method in ("ddp", "bf16-hook") else Run(each.run.method, "auto")
        for each in on_ddp
    ]
    short = tuple(
        replace(each, run=run, epochs=each.epochs[-1:]) for each, run in zip(on_ddp, runs, strict=True)
    )
    made, note = table(short)
    assert [(each.name, each.unit) for each in made.columns][-2:] == [("ratio", ""), ("speed", "/ DDP")]
    assert [row[-1] for row in made.rows] == ["1.0x", "2.0x", "4.0x", "5.0x"]
    assert all("-" not in cell for row in made.rows for cell in row[1:])
    assert "DDP was evaluated 1 time, and times to equal loss need 3; train for more --epochs" in note
    assert "attach + auto was too short, with 30 steps, to choose a plan" in note
    decided = tuple(replace(each, decided=((5, "fp8 pays"),)) for each in short)
    assert "to choose a plan" not in table(decided)[1]
    assert "too short" not in table(on_ddp)[1]


def test_a_comparison_with_ddp_that_is_too_short_for_losses_has_a_verdict_on_steps(
    options: JobOptions, on_ddp: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    short = tuple(replace(each, epochs=each.epochs[-1:]) for each in on_ddp)
    show_report(options, short)
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(
        "A step of Pipe-SGD + fp8 is 5.0 times as fast as DDP; the losses were not compared. "
    )
    slow = tuple(replace(each, epochs=(replace(each.epochs[-1], train_s=14.4),)) for each in short[1:])
    assert step_verdict((short[0], *slow)) == (
        "A step of attach + fp8 is 1.2 times slower than DDP; the losses were not compared"
    )
    assert step_verdict(short[:1]) is step_verdict(short[1:]) is None


def test_a_narrow_terminal_folds_the_names_and_drops_nothing(
    options: JobOptions,
    results: tuple[RunResult, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    show_report(options, results)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 60
    names = "".join(re.sub(r"\s+[\d.-].*", "", line.strip()).replace(" ", "") for line in lines)
    assert "".join(result.run.label.replace(" ", "") for result in results) in names
