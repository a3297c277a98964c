"""Show the matrix at the end, whether it passed or not."""

from __future__ import annotations

import pytest

from faults.runs import NEW_REPEATS, REPEATS, SEED, Cell, table

CELLS = pytest.StashKey[list[Cell]]()


@pytest.fixture(scope="session")
def shown(pytestconfig: pytest.Config) -> list[Cell]:
    """The cells that the summary shows."""
    return pytestconfig.stash.setdefault(CELLS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and how to have the same draws again."""
    cells = config.stash.get(CELLS, [])
    if cells:
        repeats = f"GRADWIRE_FAULT_REPEATS={REPEATS} GRADWIRE_FAULT_NEW_REPEATS={NEW_REPEATS}"
        terminalreporter.section(f"faults, {repeats} GRADWIRE_FAULT_SEED={SEED}")
        terminalreporter.write_line(table(cells))
