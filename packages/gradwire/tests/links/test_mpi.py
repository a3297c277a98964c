"""Links over MPI: four processes under ``mpiexec`` do all tasks of ``support/mpi_ranks.py`` in one job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.links import MpiLink
from gradwire.version import version
from support.mpi_jobs import needs_mpi, run_job
from support.mpi_ranks import LENGTHS, MANY_LINKS, PAGE, PIECES, UNTAKEN, WORLD, all_sums
from support.sums import bits

RunRanks = Callable[..., list[Any]]
Results = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Run the program once; ``results(task)`` is what every rank's task returned."""
    ranks = run_job("support.mpi_ranks", WORLD, tmp_path_factory.mktemp("mpi"))

    def of_task(name: str) -> list[Any]:
        for rank, (_, error) in enumerate(results[name] for results in ranks):
            assert error is None, f"rank {rank}:\n{error}"
        return [results[name][0] for results in ranks]

    return of_task


class TestUnderMpiexec:
    pytestmark = needs_mpi

    def test_every_sum_has_the_bits_that_it_has_over_loopback(
        self, results: Results, run_ranks: RunRanks
    ) -> None:
        wanted = run_ranks(WORLD, all_sums)
        for came, expected in zip(results("sums"), wanted, strict=True):
            assert came.keys() == expected.keys()
            for way, tensor in came.items():
                assert torch.equal(bits(tensor), bits(expected[way])), way

    def test_frames_arrive_whole_and_in_order_with_their_exact_lengths(self, results: Results) -> None:
        for me, found in enumerate(results("frames_beside_the_callers_own")):
            assert found["place"] == (me, WORLD)
            keys = [(rank, i) for rank in range(WORLD) if rank != me for i in range(len(LENGTHS))]
            assert found["lengths"] == {(rank, i): LENGTHS[i] for rank, i in keys}
            assert found["values"] == {(rank, i): [10 * rank + i] * 2 for rank, i in keys}
            assert found["in place"]

    def test_the_callers_own_messages_and_the_frames_never_meet(self, results: Results) -> None:
        for found in results("frames_beside_the_callers_own"):
            assert not found["early"]
            assert found["own"] == b"own"

    def test_a_peer_that_does_nothing_is_a_timeout_that_names_both_ranks(self, results: Results) -> None:
        (receiving, for_s), _, (sending, and_for_s), _ = results("late")
        assert receiving.startswith("rank 0 receiving from rank 1: no progress within 0.5 s; check")
        assert sending.startswith("rank 2 sending to rank 3: no progress within 0.5 s; check")
        assert 0.5 <= for_s < 5.0
        assert 0.5 <= and_for_s < 5.0

    def test_a_rank_that_is_served_last_takes_nobody_for_dead_until_all_stand_still(
        self, results: Results
    ) -> None:
        for rank, said in enumerate(results("served_last")):
            peer = (rank + 1) % WORLD
            assert said.startswith(f"rank {rank} receiving from rank {peer}: no progress within 0.8 s; check")

    def test_a_closed_link_wakes_who_waits_for_it_and_is_of_no_more_use(self, results: Results) -> None:
        said = results("closed")
        for rank in (0, 2, 3):
            wanted = f"rank {rank} receiving from rank 1: rank 1 has closed its link"
            assert said[rank]["first"][0] == ("7" if rank == 2 else wanted)
            assert said[rank]["again"][0] == wanted
            assert said[rank]["send"][0] == f"rank {rank} sending to rank 1: rank 1 has closed its link"
            assert all(seconds < 5.0 for _, seconds in said[rank].values())
        assert said[1]["own wait"][0] == "rank 1 receiving from rank 0: this rank has closed its link"
        assert said[1]["own send"][0] == "rank 1 sending to rank 0: this rank has closed its link"

    def test_the_links_are_measured_with_trains(self, results: Results) -> None:
        for found in results("trains"):
            assert len(found) == 2, "of the links to both neighbours"
            for alone, both, nbytes_per_s, latency_s in found:
                assert alone >= PIECES - 1
                assert both == PIECES
                assert 1e5 < nbytes_per_s < 1e12
                assert 0 < latency_s < 1.0

    def test_a_rank_that_leaves_within_a_measurement_is_named(self, results: Results) -> None:
        assert results("trains_of_a_rank_that_leaves")[0] == (
            "rank 0 receiving from rank 1: rank 1 has closed its link"
        )

    def test_what_mpi_refuses_is_an_error_and_not_the_end_of_the_job(self, results: Results) -> None:
        (no_such_rank,), (too_large,), *_ = results("too_large")
        assert no_such_rank.startswith("rank 0 sending to rank 99: ")
        assert "rank" in no_such_rank.removeprefix("rank 0 sending to rank 99: ")
        assert too_large.startswith("rank 1 receiving from rank 0: ")
        assert "truncated" in too_large.lower()
        assert "\n" not in no_such_rank + too_large

    def test_an_exchange_that_one_rank_leaves_ends_on_all(self, results: Results) -> None:
        for rank, (message, seconds) in enumerate(results("one_rank_leaves")[:3]):
            assert message.startswith("step ")
            assert f"rank {rank} " in message
            assert "has closed its link" in message
            assert seconds < 5.0

    def test_links_of_several_threads_go_side_by_side(self, results: Results) -> None:
        assert results("two_links_in_two_threads") == [[{1111.0}, {2222.0}]] * WORLD

    def test_closed_links_give_their_communicators_back_unless_a_frame_is_left(
        self, results: Results
    ) -> None:
        given_back = [[True] * MANY_LINKS for _ in range(WORLD)]
        given_back[1][UNTAKEN] = False
        assert results("communicators_of_closed_links") == given_back

    def test_a_link_is_made_by_all_ranks_of_its_communicator(self, results: Results) -> None:
        for rank, said in enumerate(results("links_of_some_ranks")):
            assert said["place"] == f"{rank // 2} of 2"
            assert said["none"].startswith("MpiLink: expected an intracommunicator")
            if rank < 2:
                what = "rank 0 joining the 2 ranks of its communicator"
                assert said["alone"].startswith(f"{what}: no progress within 0.3 s; check")

    def test_ranks_with_different_versions_are_told_so_and_may_try_again(self, results: Results) -> None:
        for rank, (said, total) in enumerate(results("another_version")):
            assert said == (
                f"rank {rank} joining the {WORLD} ranks of its communicator: expected the same version of "
                f"gradwire on all ranks, got {version()} on rank 0, rank 2, rank 3 and 9.9 on rank 1; "
                "install the same version on all ranks"
            )
            assert total == WORLD**2

    def test_the_pages_example_runs(self, results: Results) -> None:
        assert all(len(blocks) >= 1 for blocks in results("example"))
        assert "mpiexec" in PAGE.read_text(encoding="utf-8")

    def test_mpi_is_not_started_before_a_link_is_made(self, results: Results) -> None:
        assert results("imported too early") == [False] * WORLD


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        LinkError, match=r"needs mpi4py and an MPI library.*pip install './packages/gradwire\[mpi\]'"
    ):
        MpiLink()


@pytest.mark.parametrize(("level", "name"), [(0, "THREAD_SINGLE"), (1, "THREAD_FUNNELED")])
def test_mpi_with_too_few_threads_is_refused(monkeypatch: pytest.MonkeyPatch, level: int, name: str) -> None:
    started = SimpleNamespace(
        Is_finalized=lambda: False, Query_thread=lambda: level, THREAD_SINGLE=0, THREAD_SERIALIZED=2
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=started))
    with pytest.raises(LinkError, match=f"THREAD_SERIALIZED or THREAD_MULTIPLE.*got {name}; set mpi4py.rc"):
        MpiLink()


def test_mpi_that_has_ended_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(Is_finalized=lambda: True)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=ended))
    with pytest.raises(LinkError, match="got a call after MPI_Finalize"):
        MpiLink()
