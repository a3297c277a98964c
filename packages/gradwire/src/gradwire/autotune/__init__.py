"""Automatic choice of a plan during training, as in ``attach(model, "auto")``."""

from gradwire.autotune.settings import Auto, AutoConfig

__all__ = ["Auto", "AutoConfig"]
