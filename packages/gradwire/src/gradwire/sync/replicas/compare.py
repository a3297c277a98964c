"""The comparison of the state that all ranks share: weights, buffers, optimizer states, and options."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.modules.batchnorm import _NormBase

from gradwire import _native
from gradwire.checkpoints import bytes_of
from gradwire.codecs.spec import is_whole
from gradwire.devices import on_host
from gradwire.errors import ExchangeError, SpecError, StateError, shown
from gradwire.exchange import Exchange
from gradwire.sync.bucket.observe import BetweenSteps, StepObserver
from gradwire.sync.messages import gather
from gradwire.units import counted, ranks_in_words

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
    """Return the nonempty buffers that all ranks share and ``wanted(module, name)`` selects, each once."""
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


def joins(model: object) -> bool:
    """Return whether a model is within DDP's context ``join``."""
    return bool(getattr(getattr(model, "_join_config", None), "enable", False))


def replica_hashes(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, hash_of: Hash
) -> dict[str, bytes]:
    """Return the hashes of the weights that all ranks share, and of their optimizer's state, if any."""
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

    Tensors and numbers are included; flags and strings are not, because they may depend on the device. The
    state of the parameters with the ids ``without`` may differ between ranks, and is omitted.
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


def check_replicas(
    model: nn.Module, exchange: Exchange, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Compare all ranks' weights, buffers, and optimizer states.

    Every rank calls this while no exchange of the link is running. All buffers in ``state_dict`` are compared
    except the running statistics of normalisation layers, which differ between ranks in training. The ranks
    gather 96 bytes of each rank. Raises ``StateError`` on every rank, naming the ranks that differ from the
    majority (in a tie, from rank 0), and ``ExchangeError``.
    """

    def is_compared(module: nn.Module, name: str) -> bool:
        return not isinstance(module, _NormBase) and name not in module._non_persistent_buffers_set

    hashes = replica_hashes(model, optimizer, sha256_of)
    hashes |= {"buffers": sha256_of(shared_buffers(model, is_compared))}
    remedy = "look for a checkpoint that only some ranks loaded, or for a change that depends on the rank"
    found = _differences(hashes, exchange)
    _check_equal(found, f"{remedy}, then call synchronise() for weights and buffers")


def _check_equal(differences: Mapping[str, str | None], remedy: str) -> None:
    for what, different in differences.items():
        if different is not None:
            raise StateError(f"expected bit-identical replicas, but the {what} of {different}; {remedy}")


def check_in_flight(steps_done: int, in_flight: int, exchange: Exchange) -> None:
    """Raise ``StateError`` on all ranks unless all have resumed with equally many gradients in flight."""
    every = [int(count) for (count,) in gather(exchange, [in_flight])]
    other = next((rank for rank, count in enumerate(every) if count != every[0]), None)
    if other is not None:
        raise StateError(
            f"expected all ranks to resume at step {steps_done} with {counted(every[0], 'gradient')} in "
            f"flight, like rank 0, got {every[other]} on rank {other}; load the same checkpoint on all "
            "ranks, and call drain on all ranks or on none"
        )


def check_layout(model: nn.Module, exchange: Exchange) -> bool:
    """Raise ``ExchangeError`` unless parameters and saved buffers have the same shapes on all ranks.

    Return whether the shapes of buffers with ``persistent=False`` are also the same.
    """
    parameters = [
        (tuple(each.shape), str(each.dtype), each.requires_grad) for each in shared_parameters(model)
    ]
    layouts = {
        "parameters": parameters,
        "buffers": _shapes(kept_buffers(model)),
        "caches": _shapes(cached_buffers(model)),
    }
    found = _differences({name: _digest(str(each)) for name, each in layouts.items()}, exchange)
    for what in ("parameters", "buffers"):
        if found[what] is not None:
            raise ExchangeError(
                f"rank {exchange.link.rank}: expected the same model on all ranks, but the {what} of "
                f"{found[what]} in shape, dtype or requires_grad; create and freeze the model identically on "
                "all ranks"
            )
    return found["caches"] is None


def check_options(options: str, exchange: Exchange) -> None:
    """Raise ``ExchangeError`` unless the string ``options`` is equal on all ranks."""
    different = differing(options, exchange)
    if different is not None:
        raise ExchangeError(
            f"expected the same options on all ranks, but those of {different}; rank {exchange.link.rank} "
            f"has {options}; start all ranks with the same options"
        )


def differing(text: str, exchange: Exchange) -> str | None:
    """Return a phrase naming the ranks whose text differs from the majority's, or None."""
    return _differences({"text": _digest(text)}, exchange)["text"]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _differences(
    parts: Mapping[str, bytes], exchange: Exchange, timeout_s: float | None = None
) -> dict[str, str | None]:
    """Return, for each part, a phrase naming the ranks whose bytes differ from the majority's, or None."""
    rows = gather(exchange, list(b"".join(parts.values())), timeout_s)  # a byte as a float
    every = [bytes(map(int, row)) for row in rows]  # compared many times faster than lists of floats
    start, found = 0, dict[str, str | None]()
    for name, own in parts.items():
        values = [each[start : start + len(own)] for each in every]
        start += len(own)
        right = max(values, key=values.count)  # in a tie, the value of the lowest rank
        wrong = [rank for rank, value in enumerate(values) if value != right]
        phrase = f"{ranks_in_words(wrong)} differ from those of rank {values.index(right)}"
        found[name] = phrase if wrong else None
    return found


def _shapes(buffers: Iterable[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tuple(each.shape), str(each.dtype)) for each in buffers]


class ReplicaWatch(StepObserver):
    """A check of the replicas at the beginning of some steps.

    Parameters
    ----------
    every
        The number of steps between checks, from the first step on; None for no regular checks.
    optimizer
        The optimizer whose state is compared in addition to the weights; None for only the weights.

    Raises
    ------
    SpecError
        For an invalid argument, and for an optimizer whose state is divided among the ranks.
    """

    def __init__(self, every: int | None = None, optimizer: torch.optim.Optimizer | None = None) -> None:
        if every is not None and not is_whole(every, 1, sys.maxsize):
            raise SpecError(
                "expected a whole number of at least 1, or None, for check_replicas_every, got "
                f"{shown(every)}; pass, for example, 1000"
            )
        if optimizer is not None:
            check_replicated(optimizer)
        self.every, self.optimizer = every, optimizer
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._is_requested = False

    def watch(self, model: nn.Module) -> None:
        """Compare the replicas of ``model``, a ``DistributedDataParallel``, as long as the model is alive."""
        self._model = weakref.ref(model)

    def ask(self) -> None:
        """Request a check by SHA-256 at the beginning of the next step, even under ``join``."""
        self._is_requested = True

    def begin(self, step: int, sync: BetweenSteps) -> None:
        """Compare the replicas if requested or due.

        Under ``join``, no regular check is due, because ranks without batches have old weights.
        """
        model = self._model()
        module = getattr(model, "module", None)
        if module is not None and self._is_requested:
            self._is_requested = False
            self.compare(sync)
        elif module is not None and self.is_due(step - 1) and not joins(model):
            compare_now(sync, replica_hashes(module, self.optimizer, crc32c_of))

    def compare(self, sync: BetweenSteps, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare the replicas now, by SHA-256, with ``optimizer`` or, by default, the watch's optimizer.

        All ranks call this between the same two steps.
        """
        if optimizer is not None:
            check_replicated(optimizer)
        module = getattr(self._model(), "module", None)
        if module is not None:
            compared = self.optimizer if optimizer is None else optimizer
            compare_now(sync, replica_hashes(module, compared, sha256_of))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that must be equal on all ranks, because ranks check together."""
        what = "weights" if self.optimizer is None else "weights and optimizer"
        return {"check_replicas_every": str(self.every), "what is checked": what}

    def is_due(self, steps_done: int) -> bool:
        """Return whether the next step begins with a check."""
        return self.every is not None and steps_done % self.every == 0


def compare_now(sync: BetweenSteps, hashes: Mapping[str, bytes]) -> None:
    """Raise ``StateError`` on all ranks if hashes of their replicas differ; the exchange can continue."""
    compare = partial(_differences, hashes, timeout_s=sync.context.begin_timeout_s)
    remedy = "load the same complete checkpoint on all ranks, and look for a change that depends on the rank"
    _check_equal(sync.exchange_now("the hashes of the replicas", compare), remedy)
