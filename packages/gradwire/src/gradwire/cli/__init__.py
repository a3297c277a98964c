"""The command line: it parses arguments, calls a command of this or another package, and reports errors."""

from gradwire.cli.main import main

__all__ = ["main"]
