"""The backward pass of one batch, during which the exchange of complete buckets may begin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from gradwire.errors import ExchangeError, TensorError, shown
from gradwire.sync.bucket.work import BucketWork
from gradwire.sync.flat.buckets import Alone, FlatBuckets, UsedParameters, UsedParametersAgreement
from gradwire.sync.flat.gradients import Bucket, FlatGradients
from gradwire.sync.gradient_sync import GradientSync

_AT_THE_END = sys.maxsize
"""The awaited number of gradients of a parameter whose bucket never starts before backward ends."""


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Compute the gradients of one batch into ``gradients``, and return its loss. Raises ``TensorError``."""
    value = _run(compute_loss, gradients, nullcontext())
    gradients.collect()
    return value


class BackwardOverlap:
    """The bucket-by-bucket exchange of gradients, which overlaps the backward pass.

    As in ``DistributedDataParallel`` (Li et al., VLDB 2020, section 3.2.3), a bucket's exchange starts as
    soon as all of its gradients are ready. Every rank starts the buckets in the same order, so a bucket that
    is ready early waits for its turn. A parameter without a gradient is ready when backward ends, with the
    gradient 0.

    A parameter may receive several gradients in one pass, for example from reentrant checkpoints, and a
    callback may change a gradient later. The first pass that uses the parameter counts its gradients, and
    starts its bucket after backward. Later passes await the largest number of gradients that any pass has
    counted, which may differ between ranks. A gradient that exceeds this number is an error if its bucket was
    already started.

    The hooks that detect gradients exist only during backward. So they run after the user's hooks, whose
    changes the exchange includes, and see no backward pass within ``compute_loss``, such as an accumulation
    over smaller batches. A single bucket needs no hooks.
    """

    def __init__(self, sync: GradientSync, buckets: FlatBuckets) -> None:
        self._sync, self._buckets, self._cut = sync, buckets, buckets.cut
        self._bucket_of = {
            index: number for number, bucket in enumerate(self._cut) for index in bucket.parameters
        }
        self._awaited: dict[int, int] = {}  # by parameter; 0 for parameters that no pass has used
        self._works: list[BucketWork] = []
        self._has_given_up = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Run a ``with`` block, and end the exchange if the block fails while buckets are in flight.

        The ranks are out of step then: the link is closed, and later blocks raise ``ExchangeError``.
        """
        if self._has_given_up:
            self._sync.context.exchange.transport.check()
        self._works = []
        try:
            yield
        except BaseException as error:
            if self._works:
                self._has_given_up, context = True, self._sync.context
                failure = ExchangeError(
                    f"rank {context.rank}: step {context.steps_done + 1} failed with buckets in flight "
                    f"({str(error) or type(error).__name__}), so the ranks are out of step; create the "
                    "training method again on all ranks"
                )
                failure.__cause__ = error
                self._sync.fail(failure)
            raise

    def backward(
        self,
        compute_loss: Callable[[], torch.Tensor],
        gradients: FlatGradients,
        before: Callable[[Bucket], object] = lambda _bucket: None,
    ) -> float:
        """Compute the gradients of one batch, starting complete buckets, and return its loss.

        Call it within ``guarded``, and then ``start_rest``. ``before`` is called with each bucket before its
        exchange. Raises the errors of ``compute_loss`` and of the exchange, and ``TensorError``.
        """
        self._gradients, self._before, self._used = gradients, before, UsedParameters(gradients, ())
        watching = self._watching() if len(self._cut) > 1 else nullcontext()
        return _run(compute_loss, gradients, watching)

    def start_rest(self) -> tuple[list[BucketWork], UsedParameters]:
        """Start the remaining buckets after backward; return all of the step's buckets and used parameters.

        The used parameters are complete once the buckets are averaged. Unused parameters have a gradient of
        0. Raises ``TensorError`` if a gradient has changed after its bucket was started.
        """
        if len(self._cut) > 1:
            self._learn()
        for index, number in self._bucket_of.items():
            if number >= len(self._works):
                self._gradients.collect_one(index)
        while len(self._works) < len(self._cut):
            self._start_next()
        return self._works, self._used

    @contextmanager
    def _watching(self) -> Iterator[None]:
        parameters, handles = self._gradients.parameters, []
        self._arrived = [0] * len(parameters)
        self._versions = [self._gradients.version(index) for index in range(len(parameters))]
        self._missing = [set(bucket.parameters) for bucket in self._cut]
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad:
                note = partial(self._note, index)
                handles.append(parameter.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
            elif self._awaited:  # a frozen parameter, whose gradient backward doesn't change
                self._gradients.collect_one(index)
                self._versions[index] = self._gradients.version(index)
                self._missing[self._bucket_of[index]].discard(index)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        """Count a gradient of parameter ``index``, and start complete buckets."""
        if self._bucket_of[index] < len(self._works):
            raise TensorError(self._too_late(index, "another gradient arrived"))
        self._gradients.collect_one(index)
        self._arrived[index] += 1
        self._versions[index] = self._gradients.version(index)
        if self._arrived[index] >= (self._awaited.get(index) or _AT_THE_END):
            self._missing[self._bucket_of[index]].discard(index)
            while len(self._works) < len(self._cut) and not self._missing[len(self._works)]:
                self._start_next()

    def _start_next(self) -> None:
        number = len(self._works)
        observer = Alone()
        if number + 1 == len(self._cut):  # all gradients are ready
            self._used = UsedParameters(self._gradients)
            observer = UsedParametersAgreement(self._used, tuple(self._works))
        self._before(self._cut[number])
        self._works.append(self._buckets.start(self._gradients, number, observer))

    def _learn(self) -> None:
        """Update the number of gradients to await for every parameter, once backward has ended."""
        awaited = dict[int, int]()
        for index, number in self._bucket_of.items():
            is_attached = self._gradients.is_attached(index)  # else the gradient has been replaced
            has_changed = not is_attached or self._gradients.version(index) != self._versions[index]
            if has_changed and number < len(self._works):
                raise TensorError(self._too_late(index, "its gradient changed"))
            arrived = _AT_THE_END if has_changed and self._arrived[index] else self._arrived[index]
            awaited[index] = max(arrived, self._awaited.get(index, 0))
        self._awaited = awaited

    def _too_late(self, index: int, what: str) -> str:
        shape = tuple(self._gradients.parameters[index].shape)
        return (
            f"parameter {index}, of shape {shape}: {what} while its bucket was in flight; use one bucket, or "
            "remove code that computes more gradients than in earlier steps (checkpoints with "
            "use_reentrant=True) or changes them later (queued callbacks)"
        )


def _run(
    compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients, watching: AbstractContextManager[None]
) -> float:
    """Run forward and backward of one batch, backward within ``watching``, and return the loss."""
    gradients.zero()
    loss = _checked(compute_loss())
    value = float(loss.detach())  # waits for an accelerator before backward, which may run asynchronously
    with watching:
        try:
            torch.autograd.backward(loss)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise TensorError(
                "expected compute_loss to return a loss without a backward pass, got one whose backward pass "
                "already ran; call no backward() in compute_loss, and compute a new loss in each step"
            ) from error
    return value


def _checked(loss: object) -> torch.Tensor:
    """Return the loss of ``compute_loss``. Raises ``TensorError`` unless backward can start from it."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else shown(loss)
        raise TensorError(
            f"expected compute_loss to return the loss, a tensor of one value, got {found}; write "
            "step(lambda: loss_of(model(x), y)), without backward()"
        )
    if loss.is_complex():
        raise TensorError(
            f"expected compute_loss to return a real loss, got one of {loss.dtype}; return loss.real"
        )
    if not loss.requires_grad:
        raise TensorError(
            "expected compute_loss to return a loss that depends on a trainable parameter, got one without a "
            "graph; remove .detach(), .item() and no_grad, or set requires_grad on a parameter of the model"
        )
    return loss
