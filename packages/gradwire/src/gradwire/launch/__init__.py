"""The start and the rendezvous of ranks: ranks that ``torchrun`` starts, or processes on this machine.

``launched`` reads torchrun's environment variables. ``local`` starts and supervises ranks as processes, or,
in a process that a launcher has started, runs this process's rank. ``rendezvous`` joins the store that all
ranks share and creates their group. ``store`` adds a timeout to every call of that store.
"""
