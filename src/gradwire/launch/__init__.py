"""How ranks are started and find each other: ``torchrun``'s variables, or processes of this machine.

``launched`` reads those variables, ``seat`` says what a rank is given, ``local`` starts ranks as processes
and watches them, ``joined`` takes a seat that a launcher has assigned, ``rendezvous`` finds the store that
all ranks share, ``group`` is what they say to each other beside the links.
"""
