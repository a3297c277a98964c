"""The records of ``gradwire reproduce`` as one page: the same records give the same bytes."""

from gradwire.experiments.page.page import page
from gradwire.experiments.page.recorded import Recorded, read_all

__all__ = ["Recorded", "page", "read_all"]
