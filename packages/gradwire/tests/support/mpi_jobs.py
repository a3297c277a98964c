"""Jobs of MPI: programs of ``support`` under ``mpiexec``, whose ranks leave what they found in a folder."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.project import TESTS, TESTS_PATH

_BESIDE_PYTHON = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
_MPIEXEC = shutil.which("mpiexec", path=_BESIDE_PYTHON)
_OPEN_MPI = {  # it starts neither as root nor more ranks than there are cores, unless it is told to
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
needs_mpi = [
    pytest.mark.processes,
    pytest.mark.skipif(_MPIEXEC is None, reason="there is no mpiexec; pip install mpich"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"),
]


def run_job(program: str, world: int, folder: Path, **variables: str) -> list[Any]:
    """Run ``python -m program FOLDER`` as so many ranks; return what each has pickled into its file there."""
    assert _MPIEXEC is not None
    job = subprocess.Popen(
        [_MPIEXEC, "-n", str(world), sys.executable, "-m", program, str(folder)],
        cwd=TESTS,
        env={**os.environ, **_OPEN_MPI, "PYTHONPATH": TESTS_PATH, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=100)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    assert job.returncode == 0, output
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(world)]
