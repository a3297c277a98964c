"""Fixtures of tests that stand in several folders."""

from support.training_fixtures import batch_loss, make_model, no_thread_is_left, run_ranks

__all__ = ["batch_loss", "make_model", "no_thread_is_left", "run_ranks"]
