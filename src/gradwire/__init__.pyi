from gradwire.api import all_reduce
from gradwire.codecs import Codec, parse
from gradwire.exchange import Accounting, Exchange
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.plan import Plan
from gradwire.planner import Choice, choose_plan, record_gradients

__all__ = [
    "Accounting",
    "Choice",
    "Codec",
    "Exchange",
    "Link",
    "Plan",
    "ProcessGroupLink",
    "all_reduce",
    "choose_plan",
    "loopback",
    "parse",
    "record_gradients",
]
