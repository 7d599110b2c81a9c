"""What promotion is to reach rises and falls as other samples show, and what it found is told in words."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.evaluate.output_kinds import MeasuredOutput
from lowbit.evaluate.outputs import OutputSlice
from lowbit.evaluate.verdict import OutputErrors
from lowbit.report.values import PromotedRegion
from lowbit.search.promotion_values import USABLE, Promoted, safe_margin, usable_margin


@pytest.mark.parametrize(("promised", "more"), [(5.0, 5.0), (0.0, USABLE.wanted_db)])
def test_a_requirement_rises_by_what_was_promised_too_much(promised: float, more: float) -> None:
    found = USABLE.raised(promised)

    assert found.wanted_db == pytest.approx(USABLE.wanted_db + more)
    assert found.wanted_db - found.least_db == pytest.approx(USABLE.wanted_db - USABLE.least_db)
    assert USABLE.lowered(2.0).wanted_db == pytest.approx(USABLE.wanted_db - 2.0)


def test_other_scales_are_a_change_without_any_region() -> None:
    region = PromotedRegion(
        first="a", last="a", nodes=1, format="float", multiply_adds=0.1, elements=0.1, why=""
    )

    def found(regions, rescaled):
        return Promoted(None, regions, -3.0, 1.0, 7, rescaled)  # type: ignore[arg-type]

    assert not found((), ()).is_changed
    assert "other scales for t" in found((), ("t",)).describe()
    assert "promoted" not in found((), ("t",)).describe()
    assert found((region,) * 5, ("t",)).where().startswith("a to float (10% of the multiply-adds)")
    assert "and 2 more; other scales for t" in found((region,) * 5, ("t",)).where()


def test_half_of_the_error_of_the_samples_is_taken_off() -> None:
    errors = OutputErrors([MeasuredOutput(OutputSlice("y"), "values", "y")], {})
    rng = np.random.default_rng(0)
    for size in (1.0, 3.0, 0.5, 2.0):
        y = rng.normal(size=64).astype(np.float32)
        errors.add({"y": y}, {"y": y + size * rng.normal(size=64).astype(np.float32) / 10})
    verdict = errors.verdict(held_out=True)

    taken = usable_margin(errors) - safe_margin(errors)

    assert verdict.worst.error_db > 0.5
    assert taken == pytest.approx(verdict.worst.error_db / 2)
