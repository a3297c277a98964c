"""What DDP sends by itself in each step, beside the gradients."""

from __future__ import annotations

import logging

from torch.nn.parallel import DistributedDataParallel

from gradwire.units import format_size

MUCH = 0.02
"""Buffers of this share of the gradient take as long as a sixth of one that is compressed to an eighth."""
_LOG = logging.getLogger("gradwire")


def tell_of_buffers(model: DistributedDataParallel) -> None:
    """Log on rank 0 how much DDP broadcasts in each forward pass, if that is much: no codec shortens it."""
    if model.process_group.rank() != 0 or model.process_group.size() == 1 or not model.broadcast_buffers:
        return
    buffers = sum(each.nbytes for each in model.module.buffers())
    gradient = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    if buffers > MUCH * gradient:
        _LOG.warning(
            "gradwire: DDP broadcasts %s of buffers in each forward pass, beside %s of gradients, and no "
            "codec makes them smaller; if all ranks have the same ones, such as masks, pass "
            "broadcast_buffers=False to DistributedDataParallel",
            format_size(buffers),
            format_size(gradient),
        )
