from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gradwire.cli import main
from support.beds import has_netem, needs_namespaces, start, surroundings
from support.project import SOURCES

NOBODY = 65534
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["clean", "--help"]])
def test_help_fits_a_screen_and_shows_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", *words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 40
    assert max(len(line) for line in printed) <= 80
    assert printed[printed.index("example:") + 1].startswith("  gradwire testbed ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "expected an action, got none; pass one of run, clean"),
        ("fly", "expected one of run, clean, got 'fly'"),
        ("clean now", "expected no further argument, got 'now'"),
        ("run", "expected a command after '--', got none"),
        ("run --", "expected a command after '--', got none"),
        ("run python -- true", "expected no further argument, got 'python'"),
        (
            "run -- torchrun --nproc-per-node 1 train.py --lr 1",
            "got torchrun, which would start a separate job on each; omit torchrun, because the testbed sets "
            "the variables of a rank: python train.py --lr 1\n",
        ),
        ("run -- env torchrun -m x", "sets the variables of a rank: env python train.py\n"),
        ("run true", "expected '--' before the command, got none; write gradwire testbed run -- true"),
        ("run --hosts 2 tc -s x", "write gradwire testbed run --hosts 2 -- tc -s x"),
        ("run --host 2 true", "of gradwire testbed run, got --host (did you mean '--hosts'?)"),
        ("rum", "expected one of run, clean, got 'rum' (did you mean 'run'?)"),
        ("run --hosts 0 -- true", "expected 1 to 64 hosts in a testbed, got 0"),
        ("run --hosts 1000 -- true", "expected 1 to 64 hosts in a testbed, got 1000"),
        ("run --hosts x -- true", "expected a whole number, got 'x'"),
        ("run --rate 1mbps -- true", "expected a rate such as"),
        ("run --rate 1bit -- true", "expected testbed rates from"),
        ("run --host-rates 1gbit,,1gbit -- true", "expected a rate such as"),
        ("run --host-rates 1gbit,1gbit --hosts 3 -- true", "expected 3 rates for --host-rates, got 2"),
        ("run --host-rates 1gbit --rate 1gbit -- true", "got both; omit one"),
        ("run --groups 3 -- true", "expected a number of groups that divides the 4 hosts, got 3"),
        ("run --core 1gbit -- true", "at least 2 groups"),
        ("run --mtu 100 -- true", "expected a testbed MTU from 1280 to 9000 bytes, got 100"),
        ("run --delay one -- true", "expected a time such as"),
        ("run --delay 1ms --jitter 2ms -- true", "expected a testbed jitter from 0 to its delay of 1ms"),
        ("run --loss 1 -- true", "expected a share of packets to lose of at least 0 and below 1, got 1"),
        ("run --loss 1% -- true", "expected a number, got '1%'"),
        ("run --topology bad.json --loss 0.1 -- true", "omit --loss"),
        ("run --delay= -- true", "expected a time such as"),
        ("run --delay 1h -- true", "expected a time such as"),
        ("run --timeout soon -- true", "or '30' (seconds), got 'soon'"),
        ("run --timeout nan -- true", "expected --timeout from 0 to"),
        ("run --grace -1 -- true", "expected --grace from 0 to"),
        ("run --out= -- true", "name a folder"),
        ("run --topology nowhere -- true", "--topology nowhere cannot be read: No such file"),
        ("run --topology bad.json -- true", "--topology bad.json: expected the fields rates, groups"),
        ("run --topology= -- true", "name a file"),
        ("run --topology noise -- true", "it isn't UTF-8 text"),
        ("run --topology bad.json --hosts 2 -- true", "omit --hosts"),
        ("run -- no-such-program --hosts 2", "'no-such-program' is not found or not executable"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    (place / "bad.json").write_text('{"speed": 1}', encoding="ascii")
    (place / "noise").write_bytes(b"\xff\xff")
    before = sorted(place.rglob("*"))
    assert main(["testbed", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert sorted(place.rglob("*")) == before


@needs_namespaces
def test_a_run_shows_keeps_and_records(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "bed.json").write_text('{"rates": ["1gbit", "100mbit"]}', encoding="ascii")
    script = "sleep 0.1; echo out $RANK $1; echo err >&2; exit $RANK"
    words = [
        "--topology",
        "bed.json",
        "--grace",
        "60",
        "--out",
        "kept",
        "--",
        "sh",
        "-c",
        script,
        "x",
        "--out",
    ]
    assert main(["testbed", "run", *words]) == 1
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == [
        "h0 | out 0 --out",
        "h1 | out 1 --out",
        "record and logs are in kept",
    ]
    assert sorted(printed.err.splitlines())[1:] == ["h0 | err", "h1 | err"]
    failure = printed.err.split("gradwire: ")[1].splitlines()[0]
    assert re.fullmatch(r"h1 ended with exit code 1 after [0-9.]+.?s", failure)
    record = json.loads((place / "kept" / "record.json").read_text(encoding="utf-8"))
    assert record["topology"]["rates"] == ["1gbit", "100mbit"]
    assert record["command"] == ["sh", "-c", script, "x", "--out"]
    assert (record["exit_code"], record["failure"]) == (1, failure)
    assert [(host["host"], host["exit_code"]) for host in record["hosts"]] == [("h0", 0), ("h1", 1)]
    assert 0 < record["hosts"][1]["seconds"] <= record["seconds"]
    assert record["schema"] == "gradwire-testbed/2"
    assert record["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert record["machine"]["load"] >= 0
    assert main(["testbed", "run", "--out", "kept", "--", "true"]) == 2
    assert "--out kept contains an older result (record.json)" in capfd.readouterr().err
    assert (place / "kept" / "h1.out").read_text(encoding="utf-8") == "out 1 --out\n"
    assert (place / "kept" / "h0.err").read_text(encoding="utf-8") == "err\n"
    shutil.rmtree(place / "kept")


@needs_namespaces
def test_a_folder_that_cannot_be_written_stops_it_before_the_start(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "file").touch()
    assert main(["testbed", "run", "--out", "file", "--", "touch", "started"]) == 2
    assert "file cannot be written" in capsys.readouterr().err
    assert not (place / "started").exists()


@needs_namespaces
def test_a_delay_works_and_says_by_what_and_at_what_cost(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--hosts", "2", "--delay", "2ms", "--jitter", "1ms", "--loss", "0.01", "--out", "kept"]
    assert main(["testbed", "run", *words, "--", "tc", "qdisc"]) == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out.count("tbf") == 2
    head, *_, report, last = printed.out.splitlines()
    what = "network: 2ms of delay, one way, +-1ms of jitter, 1 % of packets lost, by "
    record = json.loads((place / "kept" / "record.json").read_text(encoding="utf-8"))
    assert record["topology"]["jitter"] == "1ms"
    if has_netem():
        assert head == f"{what}the kernel's netem"
        assert (record["impairment"], record["relay"]) == ("netem", None)
    else:
        assert head == f"{what}a relay, because this kernel lacks sch_netem"
        assert report == "relay: 0B in 0 frames, 0 lost on purpose"
        assert (record["impairment"], record["relay"]["frames"]) == ("relay", 0)
    assert last == "record and logs are in kept"
    shutil.rmtree(place / "kept")


@needs_namespaces
def test_a_reader_who_leaves_ends_it_in_silence(place: Path) -> None:
    process = start(place, "run", "--hosts", "2", "--", "sh", "-c", "while echo x; do :; done")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


@needs_namespaces
def test_ctrl_c_on_a_terminal_ends_the_hosts(place: Path) -> None:
    script = 'trap "echo asked; exit 0" INT; echo ready; while :; do sleep 0.05; done'
    pid, terminal = pty.fork()
    if pid == 0:  # in here the terminal is the controlling one, as a user's is
        os.environ["TMPDIR"] = str(place)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = ["-m", "gradwire", "testbed", "run", "--hosts", "2", "--", "sh", "-c", script]
        os.execv(sys.executable, [sys.executable, *words])
    seen = b""
    while seen.count(b"ready") < 2:
        seen += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    try:
        while text := os.read(terminal, 4096):
            seen += text
    except OSError:  # the other end is closed
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert seen.count(b"| asked") == 2
    assert seen.endswith(b"gradwire: interrupted\r\n")


@needs_namespaces
def test_a_second_interrupt_is_heeded_at_once(place: Path) -> None:
    script = 'trap "echo asked" INT; echo ready; while :; do sleep 0.05; done'
    process = start(place, "run", "--hosts", "1", "--grace", "600", "--", "sh", "-c", script)
    assert process.stdout is not None
    for line in ("h0 | ready\n", "h0 | asked\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "gradwire: interrupted\n"
    assert process.returncode == 130


def python_of_nobody() -> str | None:
    """Return a Python that an ordinary user can run, and that can have a testbed then."""
    check = "from gradwire_lab.testbed.namespaces import private_area; private_area()"
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", str(python)]
        own = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*words, "-c", check], cwd="/", env=own, capture_output=True, timeout=60, check=False
        )
        if done.returncode == 0:
            return python
    return None


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are unprivileged already")
def test_an_ordinary_user_may_have_one() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(folder, NOBODY, NOBODY)
    try:
        python = python_of_nobody()
        if python is None:
            pytest.skip(
                "no Python here can be run by an ordinary user, or the kernel allows no user namespaces"
            )
        before = surroundings()
        script = "id -u; grep CapEff /proc/self/status; touch file$RANK; tc qdisc show dev eth0; exit $RANK"
        process = start(
            folder,
            "run",
            "--hosts",
            "2",
            "--delay",
            "1ms",
            "--out",
            "logs",
            "--",
            "sh",
            "-c",
            script,
            python=python,
            user=NOBODY,
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert out.count(f"| {NOBODY}\n") == 2
        assert out.count("| CapEff:\t0000000000000000\n") == 2
        assert out.count("rate 1Gbit") == 2
        assert {path.stat().st_uid for path in folder.rglob("*")} == {NOBODY}
        assert {path.name for path in folder.iterdir()} == {"file0", "file1", "logs"}
        assert surroundings() == before
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("bfp:7x16", "gradwire: expected a codec that NICs can apply"),
        ("", "gradwire: expected a codec and options for --nic, such as 'inceptionn:2^-10 --json -', got ''"),
        ("'inceptionn", "gradwire: expected a codec and options for --nic"),
        ("inceptionn:2^-10 --drop 2", "gradwire: expected a share of frames to drop"),
        ("inceptionn:2^-10 --json nic.json", "gradwire: expected --json - in --nic, got --json nic.json"),
        (
            "inceptionn:2^-10 --dorp 2",
            "gradwire nic: expected an option of gradwire nic, got --dorp (did you mean '--drop'?);",
        ),
    ],
)
def test_a_nic_that_cannot_be_is_refused_before_anything_starts(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "run", "--nic", words, "--", "true"]) == 2
    assert sentence in capsys.readouterr().err
