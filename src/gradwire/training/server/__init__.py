"""Parameter servers: synchronous, and with bounded staleness."""
