"""Policies: the number of bits in which each layer's weights are sent to the device.

The source of Bitpack and of adaptive precision is Zhuang, Malossi and Casas, "Reducing Data Motion to
Accelerate the Training of Deep Neural Networks" (A2DTWP).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.codecs.spec import is_whole
from gradwire.entropy.delta import WordName
from gradwire.errors import SpecError, StateError, refuse, shown
from gradwire.fields import Source, named
from gradwire.offload.carriers import BitpackCarrier, Carrier, DeltaCarrier
from gradwire.offload.replicas import DeviceEnd

FORMATS = (8, 16, 24, 32)
"""The numbers of bits that Bitpack can keep of a float32."""
_SPECS = "'static:8', 'static:16', 'static:24', 'static:32', 'delta', 'delta:fp32', or a policy object"


class Policy(ABC):
    """A policy that chooses the bits in which each layer's weights are sent, for one ``HostOffload``."""

    wants_norms: bool = False
    """Whether ``observe`` uses the norms. If it doesn't, norms aren't computed."""

    @abstractmethod
    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return each layer's bits after a batch, given the l2 norms of all layers' weights."""

    def bits_for(self, layer: int, norm: float) -> int | None:  # noqa: ARG002 - for policies that know
        """Return the bits that ``observe`` will choose for a layer, given only the norm of this layer.

        The layer's weights can then be sent before the norms of later layers are known. Return None if the
        bits depend on these norms.
        """
        return None

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return the bits with which a resumed run begins, given ``bits`` that this or another policy saved.

        Saved bits that this policy could have chosen stay the same.
        """
        return [*bits]

    def carrier(self, ends: Sequence[DeviceEnd]) -> Carrier:
        """Return a carrier for the layers of ``ends``: one layer of the model, or several small layers."""
        return BitpackCarrier(ends)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue with the same bits."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``. Raises ``StateError`` if a different policy has saved the state."""
        what = f"the state of the policy {type(self).__name__}"
        Source(what, "resume with the policy that was saved", StateError).read(state, named(()))


class Static(Policy):
    """A policy that keeps the same number of bits of every weight.

    Parameters
    ----------
    bits
        8, 16, 24, or 32. Raises ``SpecError`` for other values.

    Examples
    --------
    >>> Static(16).observe([1.0, 2.0])
    [16, 16]
    """

    def __init__(self, bits: int) -> None:
        if not is_whole(bits, 8, 32) or bits not in FORMATS:
            refuse("a static format of 8, 16, 24 or 32 bits", bits, "choose one of these")
        self.bits = bits

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return the policy's bits for each layer."""
        return [self.bits] * len(norms)

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return this policy's bits for each layer, and ignore the saved bits."""
        return [self.bits] * len(bits)


class Oracle(Static):
    """The best static policy in hindsight: the format whose training run reached an accuracy first.

    Parameters
    ----------
    runs
        For each number of bits, a training run: pairs of seconds and accuracy, in the order of time.
    accuracy
        The accuracy to reach. If no run reaches it, the format with the highest accuracy is used.

    Examples
    --------
    >>> Oracle({8: [(1.0, 0.1), (2.0, 0.2)], 16: [(1.5, 0.3)], 32: [(2.0, 0.3)]}, accuracy=0.25).bits
    16
    """

    def __init__(self, runs: Mapping[int, Sequence[tuple[float, float]]], accuracy: float) -> None:
        if not runs or not all(runs.values()):
            raise SpecError(
                "oracle: expected at least one pair (seconds, accuracy) for each format, got none; pass "
                "the pairs of the training runs"
            )

        def rank(bits: int) -> tuple[float, float]:
            reached = [seconds for seconds, found in runs[bits] if found >= accuracy]
            return min(reached, default=float("inf")), -max(found for _, found in runs[bits])

        super().__init__(min(runs, key=rank))


class Delta(Policy):
    """A policy that sends lossless deltas, so that the device gets the rounded masters, bit for bit.

    Parameters
    ----------
    dtype
        ``"bf16"`` or ``"fp32"``: the format to which the masters are rounded.
    checked_every
        The number of sends from one check to the next. A check compares a hash of the weights on the host and
        on the device.
    """

    def __init__(self, dtype: WordName = "bf16", *, checked_every: int = 100) -> None:
        if dtype not in ("bf16", "fp32"):
            refuse("'bf16' or 'fp32' for the dtype of a delta", dtype, "pass one of the two")
        if not is_whole(checked_every, 1, sys.maxsize):
            refuse(
                "a whole number of at least 1 for checked_every", checked_every, "pass 1 to check every send"
            )
        self.dtype, self.checked_every = dtype, checked_every

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return the bits of the dtype for each layer."""
        return [16 if self.dtype == "bf16" else 32] * len(norms)

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return the bits of the dtype for each layer, and ignore the saved bits."""
        return self.observe([0.0] * len(bits))

    def carrier(self, ends: Sequence[DeviceEnd]) -> Carrier:
        """Return a carrier of lossless deltas."""
        return DeltaCarrier(ends, self.dtype, self.checked_every)


def policy_of(policy: Policy | str) -> Policy:
    """Return a policy itself, or the policy of a spec such as ``"static:16"`` or ``"delta"``.

    Raises ``SpecError`` for an unknown spec.

    Examples
    --------
    >>> policy_of("static:24").observe([1.0])
    [24]
    """
    if isinstance(policy, Policy):
        return policy
    name, _, argument = policy.partition(":") if isinstance(policy, str) else ("", "", "")
    if name == "static" and argument in map(str, FORMATS):
        return Static(int(argument))
    if name == "delta" and argument in ("", "bf16", "fp32"):
        return Delta("fp32" if argument == "fp32" else "bf16")
    raise SpecError(f"expected a policy such as {_SPECS}, got {shown(policy)}; pass one of these")
