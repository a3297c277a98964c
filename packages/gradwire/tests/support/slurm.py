"""Stand-ins for sbatch, srun, and scontrol: each is this file with its name as the first argument.

sbatch checks the options of a job script as SLURM's manual describes them, and runs the script with SLURM's
variables. srun runs a command once per task, all on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_NUMBER = r"[1-9]\d*"
OPTIONS = {
    "job-name": r"[\w-]+",
    "nodes": rf"{_NUMBER}(-{_NUMBER})?",
    "ntasks-per-node": _NUMBER,
    "cpus-per-task": _NUMBER,
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
    "output": r"[\w%.-]+",
}
"""The options that job scripts may have here, and the form of their values."""


def install(folder: Path) -> str:
    """Write the commands to a folder, and return the PATH that finds them first."""
    folder.mkdir()
    for name in ("sbatch", "srun", "scontrol"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {name} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


def options_of(script: str) -> dict[str, str]:
    """Return the options in a job script. Raises ``ValueError`` for one that sbatch would refuse."""
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!"):
        raise ValueError("This does not look like a batch script. The first line must start with #!")
    commands = [at for at, line in enumerate(lines) if line and not line.startswith("#")]
    found = {}
    for line in lines[: commands[0] if commands else None]:
        if not line.startswith("#SBATCH"):
            continue
        option = re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line)
        if option is None or option[1] not in OPTIONS:
            raise ValueError(f"unrecognized option {line!r}")
        if not re.fullmatch(OPTIONS[option[1]], option[2]):
            raise ValueError(f"invalid value in {line!r}")
        found[option[1]] = option[2]
    late = [line for line in lines[commands[0] :] if line.startswith("#SBATCH")] if commands else []
    if late:
        raise ValueError(f"{late[0]!r} stands below a command, where sbatch ignores it")
    return found


def sbatch(*words: str) -> int:
    """Check a job script, and run it unless the first word is ``--test-only``; ``--nodes`` overrides."""
    test_only, rest = "--test-only" in words, [each for each in words if each != "--test-only"]
    given = dict(each.removeprefix("--").split("=", 1) for each in rest if each.startswith("--nodes="))
    path, *arguments = [each for each in rest if not each.startswith("--nodes=")]
    try:
        options = options_of(Path(path).read_text(encoding="utf-8")) | given
    except ValueError as error:
        sys.stderr.write(f"sbatch: error: {error}\n")
        return 1
    job, nodes = os.environ.get("STANDIN_JOB", "7"), options.get("nodes", "1")
    if test_only:
        sys.stderr.write(f"sbatch: Job {job} to start at 2030-01-01T00:00:00 using {nodes} nodes\n")
        return 0
    per_node = options.get("ntasks-per-node", "1")
    variables = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
        "SLURM_NNODES": nodes,
        "SLURM_NTASKS": str(int(nodes) * int(per_node)),
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", "1"),
    }
    return subprocess.run(["bash", path, *arguments], env=os.environ | variables, check=False).returncode


def srun(*command: str) -> int:
    """Run a command once per task, and return the largest exit code."""
    per_node = int(os.environ["SLURM_NTASKS_PER_NODE"])
    tasks = []
    for rank in range(int(os.environ["SLURM_NTASKS"])):
        node, local = divmod(rank, per_node)
        variables = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local}
        env = os.environ | {name: str(number) for name, number in variables.items()}
        tasks.append(subprocess.Popen(command, env=env))
    return max(abs(each.wait()) for each in tasks)


def scontrol(*words: str) -> int:
    """Print the nodes of a job, each of which is this machine."""
    assert words[:2] == ("show", "hostnames"), words
    sys.stdout.write("localhost\n" * int(os.environ["SLURM_NNODES"]))
    return 0


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:]))
