"""The papers' baselines: parameter servers, synchronous and with bounded staleness."""
