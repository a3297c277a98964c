"""The code on the pages: found, said how each block runs, and run as written.

Blocks run one after the other, each with names and a folder of its own. Under torchrun this file is the
script, and every block makes its own process group.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from support.forks import Program, torchrun
from support.project import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WANTS_GROUP = re.compile(
    r"torchrun|init_process_group|DistributedDataParallel|all_reduce\(tensor|Accelerator"
)

TORCHRUN, ALONE, DOCTEST = "torchrun", "alone", "doctest"
FRAMEWORKS = "docs/integrations.md"
"""Its blocks have a test of their own, which reads what they print."""

UNDER_TORCHRUN = (
    "README.md/0",
    "docs/all_reduce.md/0",
    "docs/auto.md/0",
    "docs/bench.md/0",
    "docs/ddp.md/0",
    "docs/fsdp.md/0",
    "docs/fsdp.md/1",
    "docs/how-to/several_nics.md/0",
    "docs/integrations.md/0",
    "docs/integrations.md/1",
    "docs/integrations.md/2",
    "docs/integrations.md/3",
    "docs/pipe_sgd_drop_in.md/0",
    "docs/profile.md/0",
    "docs/tutorial/ddp_in_five_minutes.md/0",
    "docs/tutorial/slow_cluster.md/0",
)
"""Page and number among its Python blocks: what torchrun starts, or what is in a process group."""
NOT_RUN = MappingProxyType(
    {
        "docs/experiments.md/0": "wants root or user namespaces, and takes minutes",
        "docs/how-to/ray_train.md/0": "wants Ray, which takes a cluster of its own and hundreds of megabytes",
        "docs/index.md/0": "is one line of docs/ddp.md, which runs",
        "docs/mpi.md/0": "wants mpiexec; tests/links/test_mpi.py runs it there",
        "docs/testbed.md/0": "wants root or user namespaces, and the reader's own train.py",
    }
)
"""Compiled only, and why."""
CONTINUED = ("docs/tutorial/writing_a_codec.md/1",)
"""Blocks that go on where the block before them ended: together they are one file."""
ARGUMENTS = MappingProxyType({"docs/tutorial/slow_cluster.md/0": ("fp8",)})
"""What the page's commands give its scripts."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Block:
    """A fenced block of Python: its page, its number there, and its text."""

    page: str
    number: int
    text: str

    @property
    def name(self) -> str:
        """How the tables above name it."""
        return f"{self.page}/{self.number}"

    @property
    def how(self) -> str | None:
        """How it runs; None where it does not."""
        if self.name in NOT_RUN:
            return None
        if self.text.startswith(">>>"):
            return DOCTEST
        return TORCHRUN if self.name in UNDER_TORCHRUN else ALONE


def pages() -> list[Path]:
    """Return every page that has code to copy."""
    return [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page: the language of each, and its text."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def python_blocks() -> list[Block]:
    """Return the blocks of all pages, in order."""
    found = []
    for page in pages():
        texts = [text for kind, text in blocks_of(page) if kind.startswith("py")]
        name = str(page.relative_to(ROOT))
        for number, text in enumerate(texts):
            before = texts[number - 1] if f"{name}/{number}" in CONTINUED else ""
            found.append(Block(name, number, before + text))
    return found


def commands() -> list[tuple[str, str]]:
    """Return page and words of every command line with gradwire in it, fenced or indented."""
    found = []
    for page in pages():
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        code = [body for kind, body in FENCE.findall(text) if kind in ("", "sh", "bash")]
        code += re.findall(r"^ {4}(\S.*)$", FENCE.sub("", text), re.MULTILINE)
        lines = (line.strip() for part in code for line in part.splitlines())
        name = str(page.relative_to(ROOT))
        found += [
            (name, line) for line in lines if re.match(r"gradwire [a-z]|.* -m gradwire |torchrun ", line)
        ]
    return found


def run_blocks(blocks: list[Block], folder: Path, ranks: int | None) -> str:
    """Run blocks one after the other, by ranks of torchrun or, with None, by one process.

    Each has a port for a process group of its own. Return what they print.
    """
    jobs, log = folder / "jobs.json", folder / "log"
    ports = itertools.islice(_free_ports(), len(blocks))
    jobs.write_text(json.dumps([asdict(each) | {"port": p} for each, p in zip(blocks, ports, strict=True)]))
    if ranks is None:
        done = Program(log, folder, LOOPBACK, run_jobs, str(jobs)).ended()
    else:
        options = (f"--nproc-per-node={ranks}",)
        done = torchrun(Path(__file__), str(jobs), options=options, log=log, cwd=folder, variables=LOOPBACK)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(re.findall("^ran (.+)$", done.stdout, re.MULTILINE)) == {block.name for block in blocks}
    return done.stdout


def _free_ports() -> Iterator[int]:
    """Yield ports on which nobody listens, of those that the system gives to no connection meanwhile."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    few = range(max(lowest - 10_000, 1024), lowest)
    for port in random.SystemRandom().sample(few, len(few)):
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            yield port


def run_jobs(jobs: str) -> None:
    """Run every block; end at the first that fails, since other ranks would wait for this one."""
    failed: list[str] = []
    threading.excepthook = lambda told: failed.append("".join(traceback.format_exception(told.exc_value)))
    for job in json.loads(Path(jobs).read_text()):
        name = f"{job['page']}/{job['number']}"
        os.environ.update(MASTER_PORT=str(job["port"]), TORCHELASTIC_USE_AGENT_STORE="False")
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                sys.argv = [name, *ARGUMENTS.get(name, ())]
                exec(compile(job["text"], name, "exec"), {"__name__": "__main__"})
                _leave()
                os.chdir("/")
        except BaseException:
            failed.append(traceback.format_exc())
        if failed:
            sys.stderr.write(f"{name} does not run as written:\n{failed[0]}\n")
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.write(f"ran {name}\n")
        sys.stdout.flush()


def _leave() -> None:
    """End the block's process group, as the end of its program would."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def import_for(jobs: str) -> None:
    """Import what the blocks import, so that ranks that are forked need not."""
    texts = (job["text"] for job in json.loads(Path(jobs).read_text()))
    for name in re.findall(r"^(?:from|import) (\w[\w.]*)", "".join(texts), re.MULTILINE):
        importlib.import_module(name)


if __name__ == "imported":  # by torchrun's agent
    import_for(sys.argv[1])
if __name__ == "__main__":
    run_jobs(sys.argv[1])
