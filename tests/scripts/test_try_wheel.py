from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from support.project import ROOT


@pytest.fixture(scope="module")
def try_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("try_wheel", ROOT / "scripts" / "try_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_the_readme_is_a_whole_script(try_wheel: ModuleType) -> None:
    code = try_wheel.example(try_wheel.README.read_text(encoding="utf-8"))
    compile(code, "README.md", "exec")
    assert "init_process_group" in code
    assert "attached.close()" in code


def test_a_readme_without_one_is_an_error(try_wheel: ModuleType) -> None:
    readme = "```python\nimport gradwire\n```\n\n    gradwire.attach(model)\n"
    with pytest.raises(ValueError, match="expected a Python example"):
        try_wheel.example(readme)
