"""Fixtures of tests that stand in several folders."""

from support.devices_fixtures import device

__all__ = ["device"]
