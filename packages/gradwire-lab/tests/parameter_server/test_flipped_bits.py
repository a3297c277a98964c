from __future__ import annotations

import pytest

from support.saved_files import OF_SERVERS
from sync.conformance import test_flipped_bits as core

test_a_flipped_bit_is_refused_or_changes_nothing = pytest.mark.parametrize(
    "kind", OF_SERVERS.items(), ids=OF_SERVERS
)(core.test_a_flipped_bit_is_refused_or_changes_nothing)
