"""The command line: ``gradwire train`` and its sisters. It parses words, calls the job and reports errors."""

from gradwire.cli.main import main

__all__ = ["main"]
