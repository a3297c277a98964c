"""Real data sets: scikit-learn's digits (offline), MNIST and Fashion-MNIST (IDX files)."""

from gradwire.job.data.datasets import DATASETS, Dataset, load
from gradwire.job.data.sources import SOURCES, at_hand, find

__all__ = ["DATASETS", "SOURCES", "Dataset", "at_hand", "find", "load"]
