"""Real data sets: scikit-learn's digits (offline), MNIST and Fashion-MNIST (IDX files), CIFAR-10's folder."""

from gradwire.job.data.datasets import DATASETS, Dataset, load
from gradwire.job.data.sources import SOURCES, at_hand, find, find_cifar10

__all__ = ["DATASETS", "SOURCES", "Dataset", "at_hand", "find", "find_cifar10", "load"]
