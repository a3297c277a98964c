"""Real data sets: scikit-learn's digits (offline), MNIST and Fashion-MNIST (IDX files)."""

from gradwire.job.data.datasets import DATASETS, Dataset, load
from gradwire.job.data.sources import find

__all__ = ["DATASETS", "Dataset", "find", "load"]
