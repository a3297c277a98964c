from gradwire.api import all_reduce
from gradwire.auto import Auto
from gradwire.checkpoints import load_checkpoint, save_checkpoint
from gradwire.codecs import Codec, parse
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.plan import Plan
from gradwire.planner import Choice, choose_plan, record_gradients
from gradwire.training.ddp.hook import attach
from gradwire.training.fsdp.attach import attach_fsdp
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.offload.host_offload import HostOffload
from gradwire.training.pipe.pipe_sgd import PipeSGD

__all__ = [
    "Auto",
    "Choice",
    "Codec",
    "Exchange",
    "ExchangeCost",
    "HostOffload",
    "Ledger",
    "Link",
    "PipeSGD",
    "Plan",
    "ProcessGroupLink",
    "all_reduce",
    "attach",
    "attach_fsdp",
    "choose_plan",
    "load_checkpoint",
    "loopback",
    "parse",
    "record_gradients",
    "save_checkpoint",
]
