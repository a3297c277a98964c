"""Training methods: gradients in, averaged gradients out, and what each step cost."""

from gradwire.training.gradients.flat import FlatGradients, FlatWeights
from gradwire.training.ledger.ledger import JsonLines, Ledger, TensorBoard, profiled
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.ledger.trackers import MLflow, WandB
from gradwire.training.methods.checkpoint import redivide
from gradwire.training.methods.d_sync import DSync
from gradwire.training.methods.method import Method
from gradwire.training.methods.worker_method import WorkerMethod
from gradwire.training.pipe.pipe_sgd import PipeSGD
from gradwire.training.replicas.broadcast import broadcast_weights
from gradwire.training.server.ps_sync import Server, Worker
from gradwire.training.server.stale_server import StaleServer
from gradwire.training.server.stale_worker import StaleWorker
from gradwire.training.sharded.sharded import Sharded

__all__ = [
    "DSync",
    "FlatGradients",
    "FlatWeights",
    "JsonLines",
    "Ledger",
    "MLflow",
    "Method",
    "PipeSGD",
    "Server",
    "Sharded",
    "StaleServer",
    "StaleWorker",
    "StepRecord",
    "TensorBoard",
    "WandB",
    "Worker",
    "WorkerMethod",
    "broadcast_weights",
    "profiled",
    "redivide",
]
