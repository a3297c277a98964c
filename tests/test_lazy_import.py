from __future__ import annotations

import subprocess
import sys

import pytest

import gradwire


@pytest.mark.parametrize(
    "code",
    ["import gradwire", "from gradwire.cli import main; main(['--version'])", "import gradwire.units"],
)
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    check = f"{code}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60).returncode == 0


def test_every_public_name_loads_and_the_others_are_refused() -> None:
    for name in gradwire.__all__:
        assert getattr(gradwire, name).__name__ == name
        assert name in dir(gradwire)
    with pytest.raises(AttributeError, match="no attribute 'everything'"):
        getattr(gradwire, "every" + "thing")
