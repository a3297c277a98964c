"""Automatic choice of a plan during training, as in ``attach(model, "auto")``."""

from gradwire.autotune.config import AutoConfig
from gradwire.autotune.settings import Auto

__all__ = ["Auto", "AutoConfig"]
