from __future__ import annotations

import json

import pytest
import torch

from gradwire.checkpoints import SUM, check_sealed, of_tensor, opened_text, sealed, sealed_text
from gradwire.errors import StateError


def test_a_tensor_has_the_published_checksum_of_its_bytes() -> None:
    """32 bytes of zeros, and 0 to 31: RFC 3720, B.4."""
    assert of_tensor(torch.zeros(8)) == 0x8A9136AA
    assert of_tensor(torch.arange(32, dtype=torch.uint8).view(4, 8)) == 0x46DD794E
    assert of_tensor(torch.arange(32, dtype=torch.uint8).view(4, 8).t().contiguous().t()) == 0x46DD794E


def test_a_text_opens_as_it_was_sealed_and_not_otherwise() -> None:
    text = sealed_text({"steps": 3, "loss": 0.5})
    assert opened_text(text) == ({"steps": 3, "loss": 0.5}, True)
    assert opened_text(json.dumps({"steps": 3})) == ({"steps": 3}, False)
    with pytest.raises(ValueError, match="doesn't match its checksum"):
        opened_text(text.replace("0.5", "0.25"))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": torch.tensor([1.0, -0.0])},
        {"weights": torch.tensor([[1.0, 0.0]])},
        {"weights": torch.tensor([1.0, 0.0], dtype=torch.float64)},
        {"more": {"rank": 1}},
        {"new": 0},
    ],
)
def test_what_was_changed_after_it_was_sealed_is_refused(change: dict[str, object]) -> None:
    record = sealed({"weights": torch.tensor([1.0, 0.0]), "more": {"rank": 0}})
    check_sealed(record, "the weights")
    with pytest.raises(StateError, match="the weights do not match their checksum"):
        check_sealed({**record, **change}, "the weights")


def test_tensors_in_lists_count_with_all_their_digits() -> None:
    record = sealed({"groups": [{"lr": torch.tensor(0.1)}], "sizes": (1, 2)})
    check_sealed({**record, "sizes": [1, 2]}, "the groups")
    with pytest.raises(StateError, match="the groups do not match their checksum"):
        check_sealed({**record, "groups": [{"lr": torch.tensor(0.1000001)}]}, "the groups")


def test_what_earlier_versions_have_sealed_is_taken() -> None:
    record = {"groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "weights": torch.ones(2), SUM: 288002061}
    check_sealed(record, "the groups")
    with pytest.raises(StateError, match="the groups do not match their checksum"):
        check_sealed({**record, "groups": [{"lr": 0.2, "betas": (0.9, 0.99)}]}, "the groups")


def test_a_record_that_nobody_can_have_sealed_is_refused() -> None:
    record = sealed({"weights": torch.ones(2)})
    for strange in (torch.ones(2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(StateError, match="do not match their checksum"):
            check_sealed({**record, "weights": strange}, "the weights")
    for other in (None, "x", torch.ones(2)):
        with pytest.raises(StateError, match="do not match their checksum"):
            check_sealed({**record, SUM: other}, "the weights")


def test_a_record_without_a_checksum_is_taken() -> None:
    record = sealed({"weights": torch.ones(2)})
    del record[SUM]
    check_sealed({**record, "weights": torch.zeros(2)}, "the weights")


def test_one_value_of_a_tensor_with_strides_has_the_sum_of_that_value() -> None:
    assert of_tensor(torch.tensor([1.0, 2.0])[::2]) == of_tensor(torch.tensor([1.0]))
    assert of_tensor(torch.ones(2, 3)[:1, ::3]) == of_tensor(torch.ones(1, 1))
