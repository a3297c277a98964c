"""Workers begin with the weights and buffers of their server, as the core's tests say of its methods."""

from __future__ import annotations

import pytest

from support.lab_methods import METHODS
from sync.replicas import test_broadcast as of_buffers
from sync.replicas import test_broadcast_frozen as of_frozen

over_servers = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)

test_buffers_begin_as_those_of_rank_0 = over_servers(of_buffers.test_buffers_begin_as_those_of_rank_0)
test_a_frozen_base_travels_as_bytes_and_keeps_its_dtype = over_servers(
    of_frozen.test_a_frozen_base_travels_as_bytes_and_keeps_its_dtype
)
