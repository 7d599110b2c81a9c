"""Names cut in the middle."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lowbit.report.tables import Name, make_table, shorten


@given(st.text(), st.integers(0, 40))
def test_never_longer_than_allowed_and_unchanged_when_it_fits(text, width) -> None:
    short = shorten(text, width)

    assert len(short) <= width
    assert short == text or len(text) > width


def test_both_ends_stay() -> None:
    assert shorten("/features/features.18/Conv_output_0", 15) == "/featu...tput_0"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_table_never_breaks_a_name_over_lines(width) -> None:
    table = make_table("title", "tensor", "SQNR dB", figures=1)
    table.add_row(Name("/layer/" * 40 + "[bold]:x:/end"), "12.34")
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False)

    console.print(table)

    *_, row = console.file.getvalue().rstrip("\n").split("\n")
    assert len(row) <= width
    assert row.startswith("/layer/")
    assert "..." in row
    assert ":x:/end" in row
    assert row.rstrip().endswith("12.34")
