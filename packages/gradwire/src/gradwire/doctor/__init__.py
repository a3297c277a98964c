"""Is this machine, and are these ranks, ready to train: facts, checks, findings.

``local`` and ``software`` check one machine, ``compare`` the cards of all ranks and a trial of their plan,
``network`` the links between them. ``ranks`` has the order of a visit, ``report`` the command and its record.
"""
