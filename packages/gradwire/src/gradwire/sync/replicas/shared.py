"""The parameters, buffers, and optimizer states that all replicas share, and their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from gradwire import _native
from gradwire.checkpoints import bytes_of
from gradwire.devices import on_host
from gradwire.errors import SpecError, shown

Values = Iterable[torch.Tensor | str]
Hash = Callable[[Values], bytes]


def shared_parameters(model: nn.Module) -> list[Parameter]:
    """Return the parameters that all ranks share, including frozen ones, each once, in the model's order."""
    ignored = _ignored_names(model)
    return [each for name, each in model.named_parameters() if name not in ignored]


def own_parameters(model: nn.Module) -> dict[str, Parameter]:
    """Return the parameters that each rank trains separately, by name."""
    ignored = _ignored_names(model)
    return {name: each for name, each in model.named_parameters() if name in ignored}


def shared_buffers(model: nn.Module, wanted: Callable[[nn.Module, str], bool]) -> list[torch.Tensor]:
    """Return the nonempty buffers that all ranks share and ``wanted`` selects, each once.

    ``wanted`` receives a module and a buffer's name in it.
    """
    ignored = _ignored_names(model)
    found = {
        id(buffer): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if wanted(module, name) and buffer.numel() and f"{prefix}.{name}".removeprefix(".") not in ignored
    }
    return list(found.values())


def kept_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the nonempty shared buffers in the model's ``state_dict``, each once."""
    return shared_buffers(model, lambda module, name: name not in module._non_persistent_buffers_set)


def cached_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the nonempty shared buffers with ``persistent=False``, whose sizes may differ between ranks."""
    return shared_buffers(model, lambda module, name: name in module._non_persistent_buffers_set)


def _ignored_names(model: nn.Module) -> set[str]:
    """Return the names of parameters and buffers that DDP ignores, as TorchRec and PEFT configure it.

    Some code of DDP puts a dot before the names of the outermost module's own parameters.
    """
    names = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return {str(name).removeprefix(".") for name in names}


def replica_hashes(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, hash_of: Hash
) -> dict[str, bytes]:
    """Return the hashes of the weights that all ranks share, and of their optimizer's state.

    Without an optimizer, the second hash is the hash of no data, which differs from any optimizer's hash.
    """
    without = {id(each) for each in own_parameters(model).values()}
    states = () if optimizer is None else optimizer_values(optimizer, without)
    return {"weights": hash_of(shared_parameters(model)), "optimizer states": hash_of(states)}


def sha256_of(values: Values) -> bytes:
    """Return the SHA-256 of tensors' bits and of strings."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(_bytes_of(value).numpy().data)
    return digest.digest()


def crc32c_of(values: Values) -> bytes:
    """Return the CRC32C of tensors' bits and of strings, several times faster than SHA-256.

    CRC32C detects every burst error of up to 32 bits, and other differences with probability 1 - 2^-32.
    """
    crc = 0
    for value in values:
        crc = _native.crc32c(_bytes_of(value), crc)
    return crc.to_bytes(4, "little")


def optimizer_values(
    optimizer: torch.optim.Optimizer, without: Collection[int] = ()
) -> Iterator[torch.Tensor | str]:
    """Yield the hyperparameters and the state of an optimizer, in an order that all ranks share.

    Tensors and numbers are included; flags and strings are not, because they may depend on the device.

    Parameters
    ----------
    optimizer
        The optimizer, with the same parameters on all ranks.
    without
        The ids of parameters to omit, whose state may differ between ranks.
    """
    state: Any = optimizer.state  # some optimizers also have strings as keys
    for group in optimizer.param_groups:
        yield from _values({name: value for name, value in group.items() if name != "params"})
        for each in group["params"]:
            if id(each) not in without:
                yield from _values(state.get(each, {}))
    yield from _values({key: value for key, value in state.items() if isinstance(key, str)})


def check_replicated(optimizer: object) -> None:
    """Raise ``SpecError`` unless replicas can compare the state of this optimizer."""
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise SpecError(
            f"expected an optimizer of torch.optim, got {shown(optimizer)}; pass the model's optimizer"
        )
    if any(each.__name__ == "ZeroRedundancyOptimizer" for each in type(optimizer).__mro__):
        raise SpecError(
            "expected an optimizer with the same state on all ranks, got a ZeroRedundancyOptimizer, whose "
            "state is divided among the ranks; omit the optimizer"
        )


def _values(content: object) -> Iterator[torch.Tensor | str]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, Mapping):
        for name in sorted(content, key=str):
            found = [*_values(content[name])]
            yield from [f"{name}:", *found] if found else ()
    elif isinstance(content, list | tuple):
        for each in content:
            yield from _values(each)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield f"{float(content)!r},"


def _bytes_of(value: torch.Tensor | str) -> torch.Tensor:
    if not isinstance(value, str):
        return bytes_of(on_host(value.detach()))
    return torch.frombuffer(bytearray(value.encode()), dtype=torch.uint8)
