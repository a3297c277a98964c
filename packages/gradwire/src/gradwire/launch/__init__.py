"""How ranks are started and find each other: ``torchrun``'s variables, or processes of this machine.

``launched`` reads those variables, ``context`` says what a rank is given, ``local`` starts ranks as processes
and watches them, ``joined`` is the one rank that a launcher has started, ``rendezvous`` finds the store that
all ranks share, ``group`` is what they say to each other beside the links.
"""
