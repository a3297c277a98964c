"""The start and rendezvous of ranks, launched by ``torchrun`` or as processes on this machine.

``launched`` reads torchrun's variables. ``local`` starts and supervises ranks as processes, or runs the one
rank that a launcher has started. ``rendezvous`` joins the store that all ranks share and creates their group.
``store`` adds a timeout to every call of that store.
"""
