import pytest

from gradwire.cli.lists import algorithm_specs, between_commas, codec_specs, geometric, listed, whole_numbers
from gradwire.errors import SpecError


def test_sizes_grow_by_a_factor_up_to_the_largest() -> None:
    assert geometric(1, 1 << 26, 2) == tuple(1 << power for power in range(27))
    assert geometric(100, 1000, 3) == (100, 300, 900)
    assert geometric(4, 4, 2) == (4,)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((8, 4, 2), "for --min and --max, in ascending order, got 8 and 4"),
        ((0, 4, 2), "of at least 1 byte"),
        ((1, 4, 1), "--factor"),
        ((1, 1 << 40, 2), "expected a size of at most"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, int, int], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        geometric(*sizes)


def test_listed_sizes_are_sorted_and_differ() -> None:
    assert listed((1000, 4)) == (4, 1000)
    for wrong in ((4, 4), (0,), (1 << 40,)):
        with pytest.raises(SpecError):
            listed(wrong)


def test_a_comma_may_belong_to_a_codec() -> None:
    assert codec_specs("identity") == ("identity",)
    assert codec_specs("quantize:8,block=256,errbound:2^-10,fp16") == (
        "quantize:8,block=256",
        "errbound:2^-10",
        "fp16",
    )
    with pytest.raises(SpecError, match="for --codecs, got fp16 twice"):
        codec_specs("fp16,identity,fp16")
    for text, wrong in (("zip,identity", "'zip'"), ("identity,zip", "'zip'"), ("identity,,fp16", "got ''")):
        with pytest.raises(SpecError, match=wrong):
            codec_specs(text)


def test_a_comma_may_belong_to_an_algorithm() -> None:
    assert algorithm_specs("ring,hierarchical:2,ring+star,tree") == (
        "ring",
        "hierarchical:2,ring+star",
        "tree",
    )
    for text, reason in (
        ("ring,gossip", "unknown algorithm 'gossip'"),
        ("ring,ring", "twice"),
        ("", "unknown algorithm ''"),
    ):
        with pytest.raises(SpecError, match=reason):
            algorithm_specs(text)


def test_blanks_beside_commas_count_for_nothing() -> None:
    assert between_commas("bf16 hook, auto on ,DDP") == ("bf16 hook", "auto on", "DDP")
    assert codec_specs("quantize:8, block=256 , fp16") == ("quantize:8,block=256", "fp16")
    assert algorithm_specs("ring, tree") == ("ring", "tree")
    assert whole_numbers("--workers", "2, 4") == (2, 4)
    with pytest.raises(SpecError, match="for --codecs, got fp16 twice"):
        codec_specs("fp16, fp16")


def test_numbers_come_once() -> None:
    assert whole_numbers("--workers", "2,4,8") == (2, 4, 8)
    for wrong in ("2,,4", "2,2", "-2", "two"):
        with pytest.raises(SpecError, match="--workers"):
            whole_numbers("--workers", wrong)
