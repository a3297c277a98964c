"""Compare the predictions of ``gradwire profile`` with measurements, for three scripts without gradwire.

    python bench/profiles.py --ranks 2                       # over the loopback interface, a minute or two
    python bench/profiles.py --hosts 4 --rates 100mbit,1gbit # in a testbed, as root, ten minutes

Each script is profiled, and then runs with the plan that the profile wrote, which
``bench/profiled/attached.py`` attaches from outside. Seconds of steps are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradwire.tables import Column, Table, figure, show

FOLDER = Path(__file__).parent / "profiled"
ATTACHED = FOLDER / "attached.py"
SCRIPTS = {"gpt_train.py": ("--max-iters",), "ddp_example.py": (), "fsdp_example.py": ("--steps",)}
"""The scripts, and each script's option for the number of steps, if any. Otherwise, epochs have ten steps."""


@dataclass(frozen=True)
class Row:
    """The seconds of a step: profiled without gradwire, and predicted and measured with gradwire."""

    script: str
    network: str
    plan: str
    plain_s: float
    predicted_s: float
    measured_s: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="ranks over the loopback interface (2)")
    parser.add_argument("--hosts", type=int, help="hosts of a testbed, instead of ranks")
    parser.add_argument("--rates", default="1gbit", help="link rates of the testbed (1gbit)")
    parser.add_argument("--scripts", default=",".join(SCRIPTS), help="scripts to run (all)")
    parser.add_argument("--steps", type=int, default=30, help="steps of each run (30)")
    words = parser.parse_args()
    networks = ["loopback"] if words.hosts is None else words.rates.split(",")
    rows = []
    for network in networks:
        for script in words.scripts.split(","):
            rows.append(compare(script, network, words.hosts or words.ranks, words.steps))
            print(rows[-1], flush=True)
    show(table(rows))


def compare(script: str, network: str, ranks: int, steps: int) -> Row:
    """Profile a script, and measure it with the recommended plan."""
    options = SCRIPTS[script]
    number = str(steps if options else -(-steps // 10))
    words = [str(FOLDER / script), *options, number]
    with TemporaryDirectory() as folder:
        record, plan, result = (Path(folder, name) for name in ("record.json", "plan.json", "result.json"))
        profiled = ["--json", str(record), "--save", str(plan), "--overwrite", "--"]
        if network == "loopback":
            run([*gradwire("profile"), *profiled, *torchrun(ranks), *words])
        else:
            run(on_hosts(ranks, network, [*gradwire("profile"), *profiled, sys.executable, *words]))
        found = json.loads(record.read_text(encoding="utf-8"))
        first, plain_s = found["estimates"][0], found["observed"]["step_s"]
        start = [str(ATTACHED), str(result), str(plan), *words]
        if network == "loopback":
            run([*torchrun(ranks), *start])
        else:
            run(on_hosts(ranks, network, [sys.executable, *start]))
        measured_s = json.loads(result.read_text(encoding="utf-8"))["step_s"]
    name = f"{first['plan']['codec']} {first['plan']['algorithm']}"
    return Row(script, network, name, plain_s, first["step_s"], measured_s)


def table(rows: list[Row]) -> Table:
    """Return a row for each script and network."""
    columns = (
        Column.of_text("script"),
        Column.of_text("network"),
        Column.of_text("plan"),
        *(Column(name, "ms") for name in ("plain", "predicted", "measured")),
        Column("error"),
    )
    return Table(
        columns,
        [
            (
                row.script,
                row.network,
                row.plan,
                *(figure(1e3 * each) for each in (row.plain_s, row.predicted_s, row.measured_s)),
                f"{100 * (row.predicted_s / row.measured_s - 1):+.1f} %",
            )
            for row in rows
        ],
    )


def gradwire(command: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", command]


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def on_hosts(hosts: int, rate: str, command: list[str]) -> list[str]:
    return [*gradwire("testbed"), "run", "--hosts", str(hosts), "--rate", rate, "--", *command]


def run(command: list[str]) -> None:
    """Run a command; exit with its output if it fails."""
    variables: dict[str, Any] = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
