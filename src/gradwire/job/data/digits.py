"""scikit-learn's handwritten digits: 1797 real scans of 8x8 pixels, installed with the package."""

from __future__ import annotations

import numpy as np
import torch

from gradwire.errors import DataError

SHUFFLE_SEED = 0
TEST_SHARE = 0.2


def read_digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return train images, train labels, test images, test labels. Raises ``DataError``.

    The split, 80 to 20, is always the same. Images are uint8 of shape (count, 8, 8) with values 0 to 16,
    labels int64.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            f"--data digits needs scikit-learn ({error}); pip install 'gradwire[train]'"
        ) from error
    digits = load_digits()
    # The file is ordered by writer. NumPy's legacy generator is frozen: this order is the same everywhere.
    order = np.random.RandomState(SHUFFLE_SEED).permutation(len(digits.target))
    images = torch.from_numpy(digits.images[order].astype(np.uint8))
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    test = round(len(labels) * TEST_SHARE)
    return images[test:], labels[test:], images[:test], labels[:test]
