"""Training methods: gradients in, averaged gradients out, and what each step cost."""

from gradwire.training.broadcast import broadcast_weights
from gradwire.training.choose import make_method
from gradwire.training.d_sync import DSync
from gradwire.training.flat import FlatGradients, FlatWeights
from gradwire.training.ledger import JsonLines, Ledger, TensorBoard, profiled
from gradwire.training.method import WorkerMethod
from gradwire.training.pipe_sgd import PipeSGD
from gradwire.training.record import StepRecord
from gradwire.training.server import Server, Worker
from gradwire.training.stale_server import StaleServer
from gradwire.training.stale_worker import StaleWorker

__all__ = [
    "DSync",
    "FlatGradients",
    "FlatWeights",
    "JsonLines",
    "Ledger",
    "PipeSGD",
    "Server",
    "StaleServer",
    "StaleWorker",
    "StepRecord",
    "TensorBoard",
    "Worker",
    "WorkerMethod",
    "broadcast_weights",
    "make_method",
    "profiled",
]
