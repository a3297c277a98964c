from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.codecs import Bfp
from support import gpu_cases


@pytest.mark.parametrize("spec", Bfp.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)
