"""The policies that are compared, by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.codecs import parse
from gradwire.codecs.formats.bitpack import BitPack
from gradwire.experiments.a2dtwp.options import AWP, AWP_FORMATS, BF16, FP32
from gradwire.training.offload import awp
from gradwire.training.offload.carriers import Bits, Carrier, Transfer, aligned
from gradwire.training.offload.policies import Policy, policy_of

NEVER = -1.0
"""A threshold that no norm's change is below."""


def policy_named(name: str, interval: int = 1, watched: int | None = None) -> Policy:
    """Return a policy of the experiment; the interval and the batches that are watched are AWP's."""
    if name == BF16:
        return Rounded()
    if name == AWP:
        return awp.AWP(threshold=awp.AUTO, interval=interval, watched=watched)
    if name in AWP_FORMATS:
        bits = AWP_FORMATS[name]
        return awp.AWP(threshold=NEVER, interval=1, start_bits=bits, max_bits=bits)
    return policy_of("static:32" if name == FP32 else name)


class Rounded(Policy):
    """Send every weight as bfloat16, rounded to nearest even: what users without a policy do."""

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return 16 bits for each layer."""
        return [16] * len(norms)

    def carrier(self, transfer: Transfer) -> Carrier:
        """Return what carries layers."""
        return RoundedCarrier(transfer)


class RoundedCarrier(Carrier):
    """Carries bfloat16, which the device widens."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer, [each.nbytes for each in transfer.masters])
        self._codec, self._whole_codec = parse("bf16"), BitPack(4)

    def pack(self, bits: Bits, *, full: bool) -> int:  # noqa: ARG002 - every message is alike
        """Fill the host's memory."""
        self.spans, end = {}, 0
        for number in bits:
            master, begin = self._masters[number], aligned(end)
            codec = self._codec if master.dim() > 1 else self._whole_codec
            end = begin + codec.encode(master.detach().reshape(-1), self.host[begin:]).numel()
            self.spans[number] = begin, end
        return end

    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:  # noqa: ARG002
        payload = self.on_device[end][slice(*span)]
        replica.copy_(payload.view(torch.bfloat16).view(replica.shape))
