from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from gradwire.errors import GradwireError, MissingPackageError

EXTRAS = {
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "accelerate": "huggingface",
    "transformers": "huggingface",
}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_package_is_one_sentence_that_names_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]  # by a test before this one
    for name in [package, *loaded]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    monkeypatch.delitem(sys.modules, f"gradwire.integrations.{package}", raising=False)
    with pytest.raises(MissingPackageError) as caught:
        importlib.import_module(f"gradwire.integrations.{package}")
    assert str(caught.value).startswith(f"gradwire.integrations.{package} needs the package {package}")
    extra = f"./packages/gradwire[{EXTRAS[package]}]"
    assert str(caught.value).endswith(f"run pip install '{extra}' in gradwire's source folder")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, GradwireError)
    assert caught.value.name == package


def test_gradwire_imports_none_of_them() -> None:
    code = (
        "import sys, gradwire, gradwire.integrations, gradwire.cli.main;"
        f"print(*sorted(set(sys.modules) & {set(EXTRAS)!r}), end='')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
