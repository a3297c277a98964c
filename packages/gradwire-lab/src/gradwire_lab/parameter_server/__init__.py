"""The papers' baselines: synchronous and stale parameter servers."""
