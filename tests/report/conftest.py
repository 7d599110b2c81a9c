"""A console of any width that keeps what it prints."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console


@pytest.fixture
def console() -> Callable[[int], Console]:
    def make(width: int) -> Console:
        return Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)

    return make
