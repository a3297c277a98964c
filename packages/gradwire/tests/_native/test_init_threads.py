from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradwire import _native
from gradwire.errors import SpecError


@pytest.mark.parametrize("asked", ["0", "-1", "1_0", "two", "\u00b2", "10000", "99999999999", ""])
def test_a_number_of_threads_that_cannot_be_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", asked)
    with pytest.raises(SpecError, match="GRADWIRE_THREADS: expected a whole number from 1 to 9999"):
        _native.threads()


def test_the_number_of_threads_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", "12")
    assert _native.threads() == 12


ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "16777216"}
"""Small allocations come from memory that the process already has, so only large ones fail."""
WITHOUT_MEMORY = """
import resource, torch
from gradwire.codecs import parse
codec, x = parse("ecsq:4,block=64,foot"), torch.randn(1 << 23)
payload, out = codec.encode(x).clone(), torch.empty(1 << 23)
with open("/proc/self/statm") as file:
    used_nbytes = int(file.read().split()[0]) * resource.getpagesize()
limit_nbytes = used_nbytes + (6 << 20)  # enough for 4 MiB of codes, but not for 8 MiB of feet
resource.setrlimit(resource.RLIMIT_AS, (limit_nbytes, limit_nbytes))
try:
    codec.decode(payload, out)
except MemoryError:
    print("no memory")
"""


@pytest.mark.processes
def test_a_kernel_without_memory_raises_an_error_on_any_thread() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY],
        env={**os.environ, **ALLOCATOR, "GRADWIRE_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "no memory\n"), ended.stderr
