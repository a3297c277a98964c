"""The table of errors, written from the classes: what each means, and the entry that its ``docs`` names."""

from __future__ import annotations

import inspect

from gradwire import errors


def classes() -> list[type[Exception]]:
    """Return the classes of ``gradwire.errors``, in alphabetical order, without the base of all."""
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [kind for kind in found if kind is not errors.GradwireError]


def table() -> str:
    """Return a row for every class: its name with a link to its entry, and its docstring's first sentence."""
    rows = ["| error | meaning |", "|---|---|"]
    for kind in classes():
        meaning = (inspect.getdoc(kind) or "").splitlines()[0].replace("``", "`")
        rows.append(f"| [`{kind.__name__}`](#{kind.docs.partition('#')[2]}) | {meaning} |")
    return "\n".join(rows)
