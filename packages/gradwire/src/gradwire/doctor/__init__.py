"""Checks of one machine, or of all ranks, before training: cards, findings, and a report.

``local`` and ``software`` check one machine. ``compare`` compares all ranks' cards, tries the ranks' plan,
and measures the links between ranks. ``ranks`` runs all checks in order, and ``report`` prints and records
the findings.
"""
