"""The command line: parse the words, call a command of this package or another, and report errors."""

from gradwire.cli.main import main

__all__ = ["main"]
