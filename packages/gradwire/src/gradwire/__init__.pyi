from gradwire.api import all_reduce
from gradwire.attached import Attached
from gradwire.autotune import Auto
from gradwire.checkpoints import load_checkpoint, save_checkpoint
from gradwire.codecs import Codec, parse
from gradwire.costs import ExchangeCost
from gradwire.ddp.attach import attach
from gradwire.exchange import Exchange
from gradwire.fsdp.attach import attach_fsdp
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.local import DSync
from gradwire.offload.host_offload import HostOffload
from gradwire.pipe.pipe_sgd import PipeSGD
from gradwire.plan import Plan
from gradwire.planner import Choice, choose_plan, record_gradients
from gradwire.sharded import Sharded
from gradwire.sync.checkpoint import redivide
from gradwire.sync.ledger.ledger import Ledger

__all__ = [
    "Attached",
    "Auto",
    "Choice",
    "Codec",
    "DSync",
    "Exchange",
    "ExchangeCost",
    "HostOffload",
    "Ledger",
    "Link",
    "PipeSGD",
    "Plan",
    "ProcessGroupLink",
    "Sharded",
    "all_reduce",
    "attach",
    "attach_fsdp",
    "choose_plan",
    "load_checkpoint",
    "loopback",
    "parse",
    "record_gradients",
    "redivide",
    "save_checkpoint",
]
