from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations

from gradwire.ddp.checks import AveragedParameters
from gradwire.errors import AttachError


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _module() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    module[0].requires_grad_(False)
    return module


def _assign(module: nn.Sequential) -> None:
    state = {name: each.clone() for name, each in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def _assign_one(module: nn.Sequential) -> None:
    module[1].bias = nn.Parameter(torch.ones(4))


def _another_layer(module: nn.Sequential) -> None:
    module[1] = nn.Linear(4, 4)


def _one_more_layer(module: nn.Sequential) -> None:
    module.append(nn.Linear(1, 1))


def _one_more_parameter(module: nn.Sequential) -> None:
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))


def _unfreeze(module: nn.Sequential) -> None:
    module[0].requires_grad_(True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_assign, r"[01]\.weight was added after Dist.*; add, .*load_state_dict\(assign=True\)"),
        (_assign_one, r"1\.bias was added"),
        (_another_layer, r"1\.weight was added"),
        (_one_more_layer, r"3\.weight was added"),
        (_one_more_parameter, "scale was added"),
        (_unfreeze, r"0\.weight was unfrozen"),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_ddp_does_not_average_is_told(
    change: Callable[[nn.Sequential], None], said: str, before: bool
) -> None:
    model = DistributedDataParallel(_module())
    if before:
        change(model.module)
    averaged = AveragedParameters(model)
    if not before:
        averaged.check()
        change(model.module)
    for _ in range(2):
        with pytest.raises(AttachError, match=said):
            averaged.check()


def _nothing(module: nn.Sequential) -> None:
    """Change nothing."""


def _freeze(module: nn.Sequential) -> None:
    module[1].requires_grad_(False)


def _parametrize(module: nn.Sequential) -> None:
    parametrizations.weight_norm(module[1])
    module[1].requires_grad_(False)


def _insert_what_trains_nothing(module: nn.Sequential) -> None:
    module.append(nn.Tanh())
    module.append(nn.Linear(1, 1).requires_grad_(False))


def _load(module: nn.Sequential) -> None:
    module.load_state_dict({name: each.clone() for name, each in module.state_dict().items()})


@pytest.mark.parametrize("change", [_nothing, _freeze, _parametrize, _insert_what_trains_nothing, _load])
def test_what_changes_no_average_is_fine(change: Callable[[nn.Sequential], None]) -> None:
    model = DistributedDataParallel(_module())
    averaged = AveragedParameters(model)
    change(model.module)
    averaged.check()
    averaged.check()
    assert set(averaged) == {*model._module_parameters} - {*model.module[0].parameters()}


def test_ignored_parameters_and_stand_ins_are_no_matter() -> None:
    module = _module()
    module._ddp_params_and_buffers_to_ignore = ["2.bias"]  # type: ignore[assignment]
    model = DistributedDataParallel(module)
    averaged = AveragedParameters(model)
    module[2].bias = nn.Parameter(torch.ones(1))
    averaged.check()
    scaled: dict[str, torch.Tensor] = {}
    seen = list[bool]()

    def check(*_: object) -> None:
        averaged.check()
        seen.append(model.module[1].weight is scaled["module.1.weight"])

    model.register_forward_pre_hook(check)
    for leaves in (False, True):
        scaled |= {name: 2 * each for name, each in model.named_parameters()}
        if leaves:
            scaled |= {name: each.detach().requires_grad_() for name, each in scaled.items()}
        torch.func.functional_call(model, scaled, (torch.ones(2, 3),))
    assert seen == [True, True]
