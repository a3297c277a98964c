"""Formulas: the papers' closed forms, the time of a step, the smart NIC's model."""
