"""Fixtures of tests that stand in several folders."""

from support.benchmark_fixtures import make_meeting

__all__ = ["make_meeting"]
