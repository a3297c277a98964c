"""Amaranth in less time."""

import support.quick_amaranth  # noqa: F401 - replaces passes of Amaranth
