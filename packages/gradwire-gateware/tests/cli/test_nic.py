from __future__ import annotations

import signal
from typing import Any

import pytest

from gradwire.cli import main
from gradwire.errors import JobError
from gradwire_gateware.cli.nic import parser, serve, settings_of

BOTH = ["--host", "a", "--link", "b"]


def test_options_become_settings() -> None:
    words = [
        *BOTH,
        "--codec",
        "truncate:16",
        "--tos",
        "0x30",
        "--drop",
        "0.5",
        "--delay",
        "20ms",
        "--seed",
        "3",
        "--no-merge",
    ]
    settings = settings_of(parser().parse_args(words))
    assert (settings.kernel, settings.tos, settings.merge) == (("pack", 16, 0, 5), 0x30, False)
    assert (settings.drop, settings.reorder, settings.delay_s, settings.seed) == (0.5, 0, 0.02, 3)
    usual = settings_of(parser().parse_args([*BOTH, "--codec", "inceptionn:2^-10"]))
    assert (usual.tos, usual.merge) == (0x28, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--codec", "bfp:7x16"], "gradwire: expected a codec that NICs can apply"),
        (["--codec", "bfb:7"], "gradwire: unknown codec 'bfb' (did you mean 'bfp'?)"),
        (
            ["--codec", "inceptionn:2^-10", "--tos", "x"],
            "argument --tos: expected a byte, got 'x'; pass e.g. 0x28",
        ),
        (["--codec", "inceptionn:2^-10", "--tos", "0"], "gradwire: expected a type of service from 0x04"),
        (["--codec", "inceptionn:2^-10", "--drop", "2"], "gradwire: expected a share of frames to drop"),
        ([], "gradwire nic: expected --codec, got none; see"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nic", *BOTH, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


class FakeNic:
    """Counts nothing, and gets SIGTERM when its interfaces are checked."""

    def __enter__(self) -> FakeNic:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def counts(self) -> dict[str, dict[str, int]]:
        return {}

    def check(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_counters_that_cannot_be_written_do_not_end_the_nic(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def tell(_counts: object) -> None:
        told.append("asked")
        if len(told) == 1:
            raise JobError("the disk is full")

    start: Any = FakeNic
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        signal.raise_signal(signal.SIGUSR1)
        serve(start, tell)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert told == ["asked", "asked"], "on SIGUSR1, and at the end"
    assert capsys.readouterr() == ("", "gradwire: the disk is full\n")
