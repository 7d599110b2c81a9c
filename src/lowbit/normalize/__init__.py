"""The one form of a float graph that the rest of the package accepts. Each pass changes its model."""

from __future__ import annotations
