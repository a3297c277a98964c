"""Run ``python -m gradwire``, which is equivalent to the command ``gradwire``."""

import sys

from gradwire.cli import main

if __name__ == "__main__":
    sys.exit(main())
