"""The parameters that DDP averages, compared with those that the module has now.

DDP knows the parameters that the module had when it was made. ``load_state_dict(assign=True)``, a new layer,
or ``requires_grad_`` after that give the module others. DDP averages none of them and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError


class AveragedParameters:
    """The parameters whose gradients DDP averages: those that asked for one when it was made."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._module, self._ignored = model.module, frozenset(model.parameters_to_ignore)
        every = set[torch.Tensor](model._module_parameters)
        known = model._get_ddp_logging_data().get("num_parameter_tensors")  # type: ignore[no-untyped-call]
        asks = all(each.requires_grad for each in every)
        self._averaged = every if asks and known == len(every) else _in_buckets(model)
        self._frozen = every - self._averaged
        self._note()
        self._ids.clear()  # the first check looks at all

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._averaged)

    def check(self) -> None:
        """Raise ``AttachError`` if the module trains a parameter that DDP does not average."""
        replaced = [*map(id, self._members())] != self._ids
        if not replaced and not any(each.requires_grad for each in self._frozen):
            return
        for name, each in self._module.named_parameters():
            if each in self._averaged or name in self._ignored or not each.requires_grad:
                continue
            if not (isinstance(each, nn.Parameter) and each.is_leaf):
                continue  # a tensor that stands in for a parameter, as torch.func.functional_call lets it
            how = "unfrozen" if each in self._frozen else "put in its place"
            raise AttachError(
                f"{name} was {how} after DistributedDataParallel was made, which averages no gradient of it; "
                "load_state_dict(assign=True) and changes of the model come before: wrap the module in a new "
                "DistributedDataParallel and attach that, and make the optimizer anew"
            )
        self._note()

    def _note(self) -> None:
        """Note which parameters and modules each module has; kept, so that no id becomes another's."""
        self._groups = [
            group for each in self._module.modules() for group in (each._parameters, each._modules)
        ]
        self._kept = [*self._members()]
        self._ids = [*map(id, self._kept)]

    def _members(self) -> Iterator[object]:
        return chain.from_iterable(map(dict.values, self._groups))


def _in_buckets(model: DistributedDataParallel) -> set[torch.Tensor]:
    """Return the parameters in DDP's buckets, which it lists in those of zeros that ``join`` takes."""
    return {each for bucket in model.reducer._get_zeros_like_grad_buckets() for each in bucket.parameters()}
