"""Policies: in how many bits the weights of each layer travel to the device.

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
from gradwire.errors import SpecError, StateError, shown
from gradwire.fields import Source, named
from gradwire.offload.carriers import BitpackCarrier, Carrier, DeltaCarrier
from gradwire.offload.replicas import DeviceEnd
from gradwire.units import is_number

FORMATS = (8, 16, 24, 32)
"""The bits that Bitpack can keep of a float32."""
_SPECS = "'static:8', 'static:16', 'static:24', 'static:32', 'delta', 'delta:fp32', or a policy object"


class Policy(ABC):
    """The choice of how the weights of each layer travel. One object serves one ``HostOffload``."""

    wants_norms: bool = False
    """Whether ``observe`` looks at the norms; where it doesn't, no thread computes them."""

    @abstractmethod
    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return the bits of each layer after a batch, given the l2 norms of its weights."""

    def bits_for(self, layer: int, norm: float) -> int | None:  # noqa: ARG002 - for policies that know
        """Return the bits that ``observe`` will give a layer of this norm, whatever those of the others are.

        Its weights then needn't wait for the others' norms. None, if they have to.
        """
        return None

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return the bits with which a run goes on that resumes from these.

        They may come from another policy. The saved ones stay where this policy could have given them.
        """
        return [*bits]

    def carrier(self, ends: Sequence[DeviceEnd]) -> Carrier:
        """Return a carrier of the ends' layers: one layer of the model, or several small ones."""
        return BitpackCarrier(ends)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to go on with the same bits."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``. Raises ``StateError``."""
        what = f"the state of the policy {type(self).__name__}"
        Source(what, "resume with the policy that was saved", StateError).read(state, named(()))


class Static(Policy):
    """Keep the same number of bits of every weight.

    Parameters
    ----------
    bits
        8, 16, 24, or 32. Raises ``SpecError`` for others.

    Examples
    --------
    >>> Static(16).observe([1.0, 2.0])
    [16, 16]
    """

    def __init__(self, bits: int) -> None:
        if isinstance(bits, bool) or bits not in FORMATS:
            raise SpecError(
                f"expected a static format of 8, 16, 24 or 32 bits, got {shown(bits)}; choose one"
            )
        self.bits = bits

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return these bits for each layer."""
        return [self.bits] * len(norms)

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return this policy's own bits, whatever was saved."""
        return [self.bits] * len(bits)


class Oracle(Static):
    """The static format that reached an accuracy first, known only after runs with each of them.

    Parameters
    ----------
    runs
        By bits, what a run with them recorded: pairs of seconds and accuracy, in the order of time.
    accuracy
        What a run must reach. Where none does, the format with the highest accuracy is taken.

    Examples
    --------
    >>> Oracle({8: [(1.0, 0.1), (2.0, 0.2)], 16: [(1.5, 0.3)], 32: [(2.0, 0.3)]}, accuracy=0.25).bits
    16
    """

    def __init__(self, runs: Mapping[int, Sequence[tuple[float, float]]], accuracy: float) -> None:
        if not runs or not all(runs.values()):
            raise SpecError("the oracle needs at least one pair of seconds and accuracy for each format")

        def rank(bits: int) -> tuple[float, float]:
            reached = [seconds for seconds, found in runs[bits] if found >= accuracy]
            return min(reached, default=float("inf")), -max(found for _, found in runs[bits])

        super().__init__(min(runs, key=rank))


class Delta(Policy):
    """Send only what changed, without loss: the device holds the rounded masters, bit for bit.

    Parameters
    ----------
    dtype
        ``"bf16"`` or ``"fp32"``: to what the masters are rounded.
    checked_every
        After how many sends a hash of the weights goes along, which the device's are compared with.
    """

    def __init__(self, dtype: WordName = "bf16", *, checked_every: int = 100) -> None:
        if dtype not in ("bf16", "fp32"):
            raise SpecError(f"the dtype of a delta must be 'bf16' or 'fp32', but is {shown(dtype)}")
        if not is_whole(checked_every, 1, sys.maxsize):
            raise SpecError(f"checked_every must be a whole number from 1 up, but is {shown(checked_every)}")
        self.dtype, self.checked_every = dtype, checked_every

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return the bits of the dtype for each layer."""
        return [16 if self.dtype == "bf16" else 32] * len(norms)

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return the bits of the dtype, whatever was saved."""
        return self.observe([0.0] * len(bits))

    def carrier(self, ends: Sequence[DeviceEnd]) -> Carrier:
        """Return a carrier of changes."""
        return DeltaCarrier(ends, self.dtype, self.checked_every)


def policy_of(policy: Policy | str) -> Policy:
    """Return a policy, also of a spec such as ``"static:16"`` or ``"delta"``. Raises ``SpecError``.

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
    raise SpecError(f"a policy is {_SPECS}, but {shown(policy)} was given")


def check_norms(norms: Sequence[float], layers: int) -> None:
    """Raise ``SpecError`` unless there is a number for each layer."""
    if len(norms) != layers or not all(is_number(norm) for norm in norms):
        raise SpecError(f"expected {layers} norms, got {shown([*norms])}; pass one for each layer")
