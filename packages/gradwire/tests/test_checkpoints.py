"""A checkpoint's file loads as it was saved, or is one clear error."""

from __future__ import annotations

import os
import resource
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import gradwire
from gradwire import checkpoints
from gradwire.errors import JobError, SpecError, StateError


def state() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}


def test_it_loads_what_was_saved_and_torch_reads_it_too(tmp_path: Path) -> None:
    saved, path = state(), tmp_path / "new" / "rank0.pt"
    gradwire.save_checkpoint(path, saved)
    for found in (gradwire.load_checkpoint(str(path)), torch.load(path), torch.load(path, mmap=True)):
        assert str(found) == str(saved)
        assert torch.equal(found["model"]["weight"], saved["model"]["weight"])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"gradwire checkpoint 1, crc32c ")
    assert os.listdir(path.parent) == ["rank0.pt"]


def test_a_hyphen_is_an_ordinary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gradwire.save_checkpoint("-", {"step": 7})
    assert gradwire.load_checkpoint("-") == {"step": 7}


def test_a_flipped_bit_anywhere_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt"
    gradwire.save_checkpoint(path, {"weight": torch.arange(4.0), "step": 7})
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 37):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"the checkpoint .*rank0\.pt (is damaged|has no checksum)"):
            gradwire.load_checkpoint(path)


@pytest.mark.parametrize("nbytes", [0, 1, 37, 38, 700, -1, -8, -38])
def test_a_file_that_was_cut_off_is_refused(nbytes: int, tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt"
    gradwire.save_checkpoint(path, state())
    path.write_bytes(path.read_bytes()[:nbytes])
    with pytest.raises(StateError, match="has no checksum, so it is truncated"):
        gradwire.load_checkpoint(path)


def test_a_large_file_is_summed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, saved = tmp_path / "rank0.pt", state()
    gradwire.save_checkpoint(path, saved)
    monkeypatch.setattr(checkpoints, "_PART_NBYTES", 1000)
    assert str(gradwire.load_checkpoint(path)) == str(saved)
    gradwire.save_checkpoint(path, saved)
    monkeypatch.undo()
    assert str(gradwire.load_checkpoint(path)) == str(saved)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    torch.save({"step": 7}, tmp_path / "plain.pt")
    for name, reason in (
        ("plain.pt", "or torch.load for a file from torch.save"),
        ("pipe", "it is a pipe or a device, not a regular file; pass a file"),
        ("absent", "No such file or directory; pass a file written by save_checkpoint"),
        ("", "Is a directory; pass a file"),
    ):
        with pytest.raises(StateError, match=reason):
            gradwire.load_checkpoint(tmp_path / name)
    with pytest.raises(OSError, match="it is a pipe or a device, not a regular file"):
        checkpoints.check_summed(tmp_path / "pipe")
    with pytest.raises(SpecError, match="expected a dictionary of states, got 7"):
        gradwire.save_checkpoint(tmp_path / "rank0.pt", 7)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="cannot be written"):
        gradwire.save_checkpoint(tmp_path / "plain.pt" / "rank0.pt", {})


def test_other_objects_are_read_only_where_the_file_is_trusted(tmp_path: Path) -> None:
    gradwire.save_checkpoint(tmp_path / "rank0.pt", {"share": Fraction(1, 3)})
    with pytest.raises(StateError, match=r"is intact, but torch\.load cannot read it: .*weights_only=False"):
        gradwire.load_checkpoint(tmp_path / "rank0.pt")
    found = gradwire.load_checkpoint(tmp_path / "rank0.pt", weights_only=False)
    assert found == {"share": Fraction(1, 3)}


@pytest.mark.parametrize("count", [0, 1 << 20])
def test_a_full_disk_is_named_and_leaves_the_older_file(count: int, tmp_path: Path) -> None:
    gradwire.save_checkpoint(tmp_path / "rank0.pt", {"step": 7})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(JobError, match=r"cannot be written to .*: File too large"):
            gradwire.save_checkpoint(tmp_path / "rank0.pt", {"weights": torch.zeros(count)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert gradwire.load_checkpoint(tmp_path / "rank0.pt") == {"step": 7}
    assert os.listdir(tmp_path) == ["rank0.pt"]


def test_a_state_that_cannot_be_saved_leaves_the_older_file(tmp_path: Path) -> None:
    gradwire.save_checkpoint(tmp_path / "rank0.pt", {"step": 7})
    with pytest.raises(Exception, match="pickle"):
        gradwire.save_checkpoint(tmp_path / "rank0.pt", {"step": lambda: 8})
    assert gradwire.load_checkpoint(tmp_path / "rank0.pt") == {"step": 7}
    assert os.listdir(tmp_path) == ["rank0.pt"]
