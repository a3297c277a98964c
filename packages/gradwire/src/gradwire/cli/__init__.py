"""The command line: parse arguments, call a command of this or another package, and report errors."""

from gradwire.cli.main import main

__all__ = ["main"]
