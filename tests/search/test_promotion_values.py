"""What promotion is to reach rises and falls as other samples show, and what it found is told in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.graph import parts
from lowbit.report.values import PromotedRegion
from lowbit.search import switched_model
from lowbit.search.promotion_values import (
    USABLE,
    AskedMargin,
    Built,
    Effort,
    Promoted,
    effort_for,
)


@pytest.mark.parametrize(("promised", "more"), [(5.0, 5.0), (0.0, 1.0)])
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


@pytest.mark.parametrize(
    "margin_of",
    [
        lambda asked: asked,
        lambda asked: asked - 5.0,
        lambda asked: asked + 8.0,
        lambda asked: 3.0 * asked + 9.0,
        lambda asked: -6.0 if asked < 2.0 else 1.0,
    ],
    ids=["as foreseen", "worse", "far better", "steeper", "a jump"],
)
def test_the_margin_asked_for_is_changed_until_the_model_that_is_built_has_little_to_spare(
    margin_of: Callable[[float], float],
) -> None:
    asked: AskedMargin | None = AskedMargin(0.7)
    margins = []
    while asked is not None and len(margins) < 8:
        margins.append(margin_of(asked.db))
        asked = asked.after(margins[-1])

    assert asked is None
    assert min(margin for margin in margins if margin >= 0) < 1.5


def test_it_stays_between_what_was_too_little_and_what_was_enough() -> None:
    enough = AskedMargin(0.0).after(-3.0)
    assert enough == AskedMargin(3.0, too_little=0.0)

    assert enough.after(9.0) == AskedMargin(1.5, too_little=0.0, enough=3.0), (
        "not below what was too little"
    )
    assert AskedMargin(0.5, too_little=0.0, enough=1.2).after(5.0) is None


@pytest.mark.parametrize(
    ("models", "best"),
    [
        ([(-1.0, 0.1), (0.5, 0.9)], 1),  # usable at any cost, before one that is not
        ([(-1.0, 0.1), (-0.5, 0.9)], 1),  # the nearer of two that are not
        ([(1.0, 0.3), (9.0, 0.35)], 1),  # eight decibels for five hundredths of the cost
        ([(1.0, 0.3), (9.0, 0.5)], 0),
        ([(12.0, 0.3), (30.0, 0.35)], 0),  # more than ten beyond what is enough bring nothing
    ],
)
def test_margin_counts_as_far_as_it_is_cheap(models, best: int) -> None:
    built = [Built(margin, cost, None, ()) for margin, cost in models]  # type: ignore[arg-type]

    assert max(built, key=lambda model: model.sort_key(0.0)) is built[best]


def test_graphs_of_many_nodes_are_tried_less_with(monkeypatch) -> None:
    """By the number of nodes, not of seconds: the same is found on every machine."""
    state = quantized(chain(4), find_preset("A8W8"), smooth(4))
    monkeypatch.setattr(parts, "LARGE_NODES", 2)

    assert effort_for(state) == Effort()

    monkeypatch.setattr(switched_model, "MANY_NODES", 2)
    brief = effort_for(state)

    assert (brief.rounds, brief.tries_scales) == (1, False)
    assert brief.built < Effort().built
