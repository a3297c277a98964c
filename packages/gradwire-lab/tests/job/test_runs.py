import pytest

from gradwire.errors import SpecError
from gradwire_lab.job.options import D_SYNC, DDP, PS_SYNC, Run, comparison, make_run, parse_runs


def test_labels_are_the_names_of_the_literature() -> None:
    assert [run.label for run in comparison("quantize:8")] == [
        "PS-Sync",
        "D-Sync",
        "D-Sync + quantize:8",
        "Pipe-SGD + quantize:8",
    ]


def test_ddp_is_compared_with_its_hook_and_with_gradwire() -> None:
    assert [run.label for run in comparison("fp8", "ddp")] == [
        "DDP",
        "DDP + bf16 hook",
        "attach + fp8",
        "Pipe-SGD + fp8",
    ]
    assert parse_runs("ddp,bf16-hook,attach:quantize:8,block=256,attach") == (
        DDP,
        Run("bf16-hook"),
        Run("attach", "quantize:8,block=256"),
        Run("attach"),
    )


def test_a_list_may_hold_codecs_with_commas() -> None:
    assert parse_runs("server,sync:quantize:8,block=256,pipe:inceptionn:2^-10,bounded,sync:identity") == (
        PS_SYNC,
        Run("sync", "quantize:8,block=256"),
        Run("pipe", "inceptionn:2^-10,bounded"),
        D_SYNC,
    )


def test_a_server_may_have_a_staleness() -> None:
    assert parse_runs("server@2:quantize:8,block=256,server@0,server,sync") == (
        Run("server", "quantize:8,block=256", 2),
        Run("server", staleness=0),
        PS_SYNC,
        D_SYNC,
    )
    assert str(make_run("server", "quantize:8", 2)) == "server@2:quantize:8"
    assert make_run("server", "quantize:8", 2).label == "SSP 2 + quantize:8"
    assert make_run("server", staleness=0).label == "SSP 0"


def test_sharded_is_a_method_with_a_codec() -> None:
    (run,) = parse_runs("sharded:quantize:8")
    assert (str(run), run.label) == ("sharded:quantize:8", "Sharded + quantize:8")


def test_a_run_may_choose_its_plan() -> None:
    assert [str(run) for run in parse_runs("attach:auto,pipe:auto")] == ["attach:auto", "pipe:auto"]
    assert make_run("sync", "auto").label == "D-Sync + auto"


def test_specs_become_canonical() -> None:
    assert make_run("sync", "quantize:8,block=1024") == make_run("sync", "quantize:8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected METHOD:CODEC, as in .*, with one of the methods"),
        ("quantize:8", "got 'quantize:8'"),
        ("sync:zip", "unknown codec 'zip'"),
        ("sync,pipe,sync:identity", "got sync:identity twice in"),
        ("sync:quantize:9", "quantize"),
        ("server@:identity", "expected a staleness such as server@2, got 'server@'"),
        ("server@-1", "expected a staleness such as server@2"),
        ("server@" + "9" * 5000, "expected a staleness such as server@2"),
        ("server@1001", "expected a staleness from 0 to 1000, got 1001"),
        (
            "ddp:fp8",
            "ddp: expected no codec, because PyTorch exchanges the gradients, got fp8; use attach:fp8",
        ),
        ("server:auto", "server: expected a codec, got auto, which only attach, sync, pipe can choose; pass"),
        ("ddp:auto", "ddp: expected no codec"),
        ("attach@1", "expected the method server with a staleness"),
        ("pipe@2", "expected the method server with a staleness, got pipe; omit"),
        ("server@2,sync,server@2", "got server@2:identity twice in"),
    ],
)
def test_mistakes_are_named(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse_runs(text)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(SpecError, match="got 'async'"):
        make_run("async")


def test_without_compression_nothing_is_compared_twice() -> None:
    assert comparison("identity") == (PS_SYNC, D_SYNC, Run("pipe"))
