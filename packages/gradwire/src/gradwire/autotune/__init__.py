"""Choose a plan while training runs, and keep watching: what ``attach(model, "auto")`` does."""

from gradwire.autotune.config import AutoConfig
from gradwire.autotune.settings import Auto

__all__ = ["Auto", "AutoConfig"]
