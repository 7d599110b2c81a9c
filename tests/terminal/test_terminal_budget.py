from __future__ import annotations

import io

import pytest
from rich.console import Console

from lowbit.report.result import show_budget
from lowbit.report.values import Budget, Together


@pytest.mark.parametrize(
    ("rest", "expected"),
    # 10 dB is a noise of 0.1 and 12.2185 dB of 0.06: of 0.1 less 0.05 that is 80 %.
    [(13.0103, "80% of what the tensors listed here add"), (60.0, None)],
)
def test_what_is_won_back_is_told_of_what_can_be_told_apart(
    rest: float, expected: str | None
) -> None:
    together = Together(
        tensors=("a",), sqnr_db=12.2185, gain_db=2.2185, noise_won_back=0.4, config="{}"
    )
    budget = Budget(
        sqnr_db=10.0,
        samples=1,
        measured=1,
        estimated=0,
        float_sqnr_db=rest,
        rows=(),
        together=together,
    )
    text = io.StringIO()

    show_budget(Console(file=text, width=200), budget)

    printed = text.getvalue()
    assert "40% of the noise won back" in printed
    assert ("listed here add" in printed) == (expected is not None)
    assert (expected or "") in printed
