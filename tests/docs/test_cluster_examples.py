"""Examples for SLURM, Kubernetes, and Ray: their files run as far as one machine allows."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from support.project import DOCS, ROOT, SOURCES
from support.slurm import install, options_of

EXAMPLES = ROOT / "examples"
SLURM, KUBERNETES, RAY = (
    EXAMPLES / each for each in ("slurm/train.sbatch", "kubernetes/train.yaml", "ray/train.py")
)
DIGITS = [str(EXAMPLES / "torchrun_ddp.py"), "--plan", "fp8", "--epochs", "3"]
_TIMEOUT_S = 550.0


def environment(**variables: str) -> dict[str, str]:
    return (
        os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES} | variables
    )


def free_port(least: int = 1024, most: int = 65536) -> int:
    """Return a port that nobody listens at."""
    for port in range(least + os.getpid() % 500, most):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def check_that_two_ranks_learned(told: str) -> None:
    hashes = re.findall(r"rank (\d): weights (\w{16})", told)
    assert sorted(rank for rank, _ in hashes) == ["0", "1"], told
    assert hashes[0][1] == hashes[1][1], told
    (first, last) = re.findall(r"loss (\S+) -> (\S+),", told)[0]
    assert float(last) < 0.7 * float(first)
    assert "times fewer bytes on the wire" in told


@pytest.mark.parametrize(
    ("page", "kind", "file"),
    [("slurm.md", "sh", SLURM), ("kubernetes.md", "yaml", KUBERNETES), ("ray_train.md", "python", RAY)],
)
def test_the_page_shows_the_file(page: str, kind: str, file: Path) -> None:
    text = (DOCS / "how-to" / page).read_text(encoding="utf-8")
    shown = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0]
    content = file.read_text(encoding="utf-8")
    assert shown == (content.split('"""\n\n', 1)[1] if kind == "python" else content)


# SLURM


def test_sbatch_accepts_the_options(tmp_path: Path) -> None:
    path = install(tmp_path / "bin")
    done = subprocess.run(
        ["sbatch", "--test-only", str(SLURM), "train.py"],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "using 4 nodes" in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "#SBATCH --nodes=2\n",
        "#!/bin/bash\n#SBATCH --nods=2\n",
        "#!/bin/bash\n#SBATCH --nodes=two\n",
        "#!/bin/bash\n#SBATCH --time=8h\n",
        "#!/bin/bash\ncd x\n#SBATCH --nodes=2\n",
    ],
)
def test_the_stand_in_refuses_what_sbatch_refuses(script: str) -> None:
    with pytest.raises(ValueError, match=r"first line|unrecognized|invalid|below"):
        options_of(script)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_job_trains_on_two_nodes(tmp_path: Path) -> None:
    path = install(tmp_path / "bin")
    job = str(free_port(29500, 30500) - 29500)
    done = subprocess.run(
        ["sbatch", "--nodes=2", str(SLURM), *DIGITS],
        env=environment(PATH=path, STANDIN_JOB=job),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "line rate" in done.stdout, "the doctor precedes"
    check_that_two_ranks_learned(done.stdout)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_job_ends_if_the_doctor_fails(tmp_path: Path) -> None:
    path = install(tmp_path / "bin")
    done = subprocess.run(
        ["sbatch", "--nodes=2", str(SLURM), *DIGITS],
        env=environment(PATH=path, GRADWIRE_TLS_KEY=str(tmp_path / "none"), STANDIN_JOB="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode != 0
    assert "weights" not in done.stdout


# Kubernetes


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    yaml: Any = import_module("yaml")  # of kubernetes-validate
    service, job = yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8"))
    return service, job


def test_the_manifest_follows_the_schemas_of_kubernetes() -> None:
    checker: Any = import_module("kubernetes_validate")
    service, job = documents()
    for each in (service, job):
        checker.validate(each, "1.29", strict=True)
    job["spec"]["parallelism"] = "four"
    with pytest.raises(checker.ValidationError):
        checker.validate(job, "1.29", strict=True)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_command_of_the_pods_trains(tmp_path: Path) -> None:
    _, job = documents()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    *shell, command = container["command"]
    port = free_port(31000)
    here = {
        f"--nnodes {job['spec']['completions']}": "--nnodes 2",
        "--master-addr train-0.train": "--master-addr 127.0.0.1",
        "--master-port 29500": f"--master-port {port}",
        "train.py": " ".join(DIGITS),
    }
    for text, instead in here.items():
        assert text in command
        command = command.replace(text, instead)
    variables = {each["name"]: each["value"] for each in container["env"]}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    pods = [
        subprocess.Popen(
            [*shell, command],
            env=environment(PATH=path) | variables | {"JOB_COMPLETION_INDEX": str(index)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        ended = [each.communicate(timeout=_TIMEOUT_S) for each in pods]
    finally:
        for each in pods:
            each.kill()
    assert [each.returncode for each in pods] == [0, 0], ended
    check_that_two_ranks_learned("".join(out for out, _ in ended))


# Ray


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_ray_trains_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray takes hundreds of megabytes")
    done = subprocess.run(
        [sys.executable, str(RAY)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "times fewer bytes on the wire" in done.stdout + done.stderr
