"""scikit-learn's handwritten digits: 1797 real scans of 8x8 pixels, installed with the package."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

from gradwire.deferred import np, torch
from gradwire.errors import DataError
from gradwire.version import how_to_install

SHUFFLE_SEED = 0
TEST_SHARE = 0.2


def read_digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return train images, train labels, test images, test labels. Raises ``DataError``.

    The split, 80 to 20, is always the same. Images are uint8 of shape (count, 8, 8) with values 0 to 16,
    labels int64.
    """
    # The file is ordered by writer. NumPy's legacy generator is frozen: this order is the same everywhere.
    table = _read_table(_find_file())
    table = table[np.random.RandomState(SHUFFLE_SEED).permutation(len(table))]
    images = torch.from_numpy(table[:, :64].reshape(-1, 8, 8).astype(np.uint8))
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    test = round(len(labels) * TEST_SHARE)
    return images[test:], labels[test:], images[:test], labels[:test]


def _find_file() -> Path:
    """Return the file of ``sklearn.datasets.load_digits``, whose import takes seconds in every worker."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(f"--data digits needs scikit-learn, not installed here; {how_to_install('train')}")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _read_table(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error}); install scikit-learn anew") from error
    if table.shape[1] != 65:
        raise DataError(
            f"{path} has {table.shape[1]} columns, but 65 are expected; install scikit-learn anew"
        )
    return table
