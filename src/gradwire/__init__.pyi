from gradwire.api import all_reduce
from gradwire.codecs import Codec, parse
from gradwire.exchange import Accounting, Exchange
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.plan import Plan
from gradwire.planner import Choice, choose_plan, record_gradients
from gradwire.training.drop_in import PipeSGD
from gradwire.training.fsdp import attach_fsdp
from gradwire.training.hook import attach
from gradwire.training.ledger import Ledger

__all__ = [
    "Accounting",
    "Choice",
    "Codec",
    "Exchange",
    "Ledger",
    "Link",
    "PipeSGD",
    "Plan",
    "ProcessGroupLink",
    "all_reduce",
    "attach",
    "attach_fsdp",
    "choose_plan",
    "loopback",
    "parse",
    "record_gradients",
]
