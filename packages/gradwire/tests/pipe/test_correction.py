"""Which corrections there are, what the paper's keeps, and which models cannot be corrected."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.pipe.correction import CORRECTIONS, Eager, check_correction, check_forward
from gradwire.sync.checkpoint import InFlight
from gradwire.sync.flat.gradients import Bucket, FlatGradients


def test_the_default_comes_first_and_others_are_refused() -> None:
    assert CORRECTIONS[0] == "eager"
    assert [check_correction(each) for each in CORRECTIONS] == list(CORRECTIONS)
    with pytest.raises(SpecError) as caught:
        check_correction("late")
    assert (
        str(caught.value)
        == "expected one of eager, none for correction, got 'late'; omit correction for eager"
    )


def test_the_papers_pipeline_computes_at_the_masters_and_keeps_nothing() -> None:
    model = nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    stale = Eager([*model.parameters()], torch.optim.SGD(model.parameters(), lr=0.1), 0, 1.0)
    assert stale.steps == 0
    gradients = FlatGradients(model.parameters())
    gradients.buffer.fill_(1)
    stale.copy(gradients, Bucket(0, 8, range(2)))
    stale.note([{"lr": 0.1}], {0})
    stale.resume([InFlight(gradients.buffer, [{"lr": 0.1}], gradients.buffer, (0,), (0,))])
    stale.keep(1)
    assert stale.own() == []
    with stale.ahead():
        assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Embedding(4, 2, max_norm=1.5), "the model"),
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.EmbeddingBag(4, 2, max_norm=1.5))), "1.0"),
    ],
)
def test_a_model_whose_forward_pass_writes_its_weights_is_named(model: nn.Module, name: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_forward(model)
    assert str(caught.value) == (
        "an eager pipeline: expected a forward pass that doesn't write weights, got max_norm=1.5 in "
        f'{name}; omit max_norm, or use correction="none"'
    )
    check_forward(nn.Sequential(nn.Embedding(4, 2), nn.EmbeddingBag(4, 2)))
