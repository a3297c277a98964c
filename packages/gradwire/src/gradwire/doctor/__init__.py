"""Checks of one machine, or of all ranks, before training: cards, findings, and a report.

``local`` and ``software`` check one machine, ``compare`` the cards of all ranks and a trial of their plan,
``network`` the links between them. ``ranks`` has the order of a visit, ``report`` the command and its record.
"""
