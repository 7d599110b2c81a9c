"""``python -m lowbit``: the same as the command ``lowbit``."""

from __future__ import annotations

import sys

from lowbit.cli import main

if __name__ == "__main__":
    sys.exit(main())
