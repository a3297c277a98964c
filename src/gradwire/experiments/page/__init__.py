"""The records of ``gradwire reproduce`` as one HTML file, which loads nothing from anywhere.

The same records give the same bytes: no time, no path, and no random name is in the page.
"""

from gradwire.experiments.page.page import page
from gradwire.experiments.page.recorded import Recorded, read_all

__all__ = ["Recorded", "page", "read_all"]
