"""The start of ranks, by ``torchrun``'s variables or as processes of this machine, and their first meeting.

``launched`` reads those variables, ``local`` starts ranks as processes and watches them, or runs the one rank
that a launcher has started. ``rendezvous`` finds the store that all ranks share and makes their group.
``store`` puts a limit on every call of that store.
"""
