from gradwire.api import all_reduce
from gradwire.codecs import Codec, parse
from gradwire.exchange import Accounting, Exchange
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.plan import Plan

__all__ = [
    "Accounting",
    "Codec",
    "Exchange",
    "Link",
    "Plan",
    "ProcessGroupLink",
    "all_reduce",
    "loopback",
    "parse",
]
