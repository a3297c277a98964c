from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.checkpoints import sealed
from gradwire.errors import StateError
from gradwire.integrations.attachment import ResidualFolder, adopted, file_name


def record(rank: int, world: int, step: int | None = 7) -> dict[str, Any]:
    residuals = {"weight": torch.full((3,), float(rank + 1))}
    return {"step": step, "residuals": {"rank": rank, "world": world, "residuals": residuals}}


def save(folder: Path, world: int, key: str = "") -> ResidualFolder:
    files = ResidualFolder(folder / "checkpoint", key)
    for rank in range(world):
        files.write(record(rank, world), rank, world)
    return files


def adopt(files: ResidualFolder, rank: int, world: int, step: int | None = 7) -> Mapping[str, Any]:
    saved = files.saved_world(world)
    return adopted(rank, world, saved, files.read(saved), step)


def test_each_rank_gets_its_own_back(tmp_path: Path) -> None:
    files = save(tmp_path, 3)
    for rank in range(3):
        state = adopt(files, rank, 3)
        assert (state["rank"], state["world"]) == (rank, 3)
        assert state["residuals"]["weight"].tolist() == [rank + 1.0] * 3
    assert sorted(path.name for path in files.folder.iterdir()) == [file_name(rank, 3) for rank in range(3)]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_another_world_divides_their_sum(tmp_path: Path, world: int) -> None:
    files = save(tmp_path, 3)
    states = [adopt(files, rank, world) for rank in range(world)]
    assert [(state["rank"], state["world"]) for state in states] == [(rank, world) for rank in range(world)]
    total = sum(state["residuals"]["weight"] for state in states)
    assert torch.allclose(total, torch.full((3,), 1.0 + 2.0 + 3.0))


def test_what_another_world_left_in_the_folder_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 4)
    other_model = save(tmp_path, 4, "-model1")
    files = save(tmp_path, 2)
    assert files.saved_world(4) == 2
    assert other_model.saved_world(2) == 4
    assert len(list(files.folder.iterdir())) == 2 + 4


def test_a_folder_without_files_or_with_those_of_two_worlds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StateError, match="of all ranks, got none; pass a folder with the residuals of one run"
    ):
        ResidualFolder(tmp_path / "nowhere").saved_world(2)
    files = save(tmp_path, 4)
    files.write(record(1, 3), 1, 3)  # rank 0 would have cleared up
    assert files.saved_world(3) == 3
    with pytest.raises(StateError, match=r"got residuals from runs with 3 and 4 ranks"):
        files.saved_world(2)


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:100]), lambda path: path.write_bytes(b"")],
)
def test_a_missing_or_damaged_file_names_its_rank(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    files = save(tmp_path, 3)
    damage(files.folder / file_name(1, 3))
    assert adopt(files, 0, 3)["rank"] == 0
    with pytest.raises(StateError, match="the residuals of rank 1 cannot be read: "):
        adopt(files, 1, 3)
    with pytest.raises(StateError, match="the residuals of rank 1 cannot be read: "):
        adopt(files, 0, 2)


def test_no_flipped_bit_of_what_was_sealed_is_adopted(tmp_path: Path) -> None:
    files = ResidualFolder(tmp_path)
    values = torch.linspace(-1, 1, 3000)
    own = {"rank": 0, "world": 1, "residuals": {"weight": values}}
    files.write(sealed({"step": 7, "residuals": own}), 0, 1)
    path = tmp_path / file_name(0, 1)
    whole = path.read_bytes()
    begin = whole.index(values.numpy().tobytes())
    for bit in (0, 31, 12_345, 95_999):
        damaged = bytearray(whole)
        damaged[begin + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=r"residuals of rank 0 cannot be read"):
            adopt(files, 0, 1)
    path.write_bytes(whole)
    assert torch.equal(adopt(files, 0, 1)["residuals"]["weight"], values)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_residuals_of_another_step_are_refused(tmp_path: Path) -> None:
    files = save(tmp_path, 2)
    with pytest.raises(StateError, match=r"expected residuals of step 8, .* got residuals of step 7"):
        adopt(files, 1, 2, step=8)
    assert adopt(files, 1, 2, step=None)["rank"] == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    files = save(tmp_path, 2)
    torch.save({"step": 7, "residuals": torch.zeros(3)}, files.folder / file_name(0, 2))
    with pytest.raises(StateError, match=r"for residuals in the residuals of rank 0, got a torch.float32"):
        adopt(files, 0, 2)
