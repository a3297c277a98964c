"""The ``sitecustomize`` of an observed script's processes, which also runs the one that it hides."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def run_hidden(here: str, path: list[str]) -> None:
    """Run the ``sitecustomize`` that Python would import from ``path`` without the folder ``here``."""
    others = [place for place in path if os.path.abspath(place) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        from gradwire.script.entry import prepare
    except ImportError:  # another Python, without gradwire, that the script starts
        pass
    else:
        prepare()
    finally:
        run_hidden(os.path.dirname(os.path.abspath(__file__)), sys.path)
