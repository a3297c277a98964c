"""Is this machine, and are these ranks, ready to train: facts, checks, findings.

``software``, ``resources``, ``interface``, ``tls`` and ``kernels`` look at one machine, ``compare`` at what
all ranks tell of theirs; ``clock``, ``lines`` and ``trial`` use the link between them. ``consultation`` says
in which order, ``run`` ties it to the command line, ``report`` shows it.
"""
