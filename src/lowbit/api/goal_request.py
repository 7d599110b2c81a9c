"""The request of a goal search, checked before any work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lowbit.data.split import Split
from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.labels import Label, read_labels
from lowbit.planning.plan import Plan
from lowbit.search.goal import Goal, read_budget
from lowbit.search.goal_search import Request
from lowbit.search.goal_strategies import check_strategies


def goal_request(
    goal: Goal | str | None,
    budget: str | float | None,
    labels: str | Sequence[Label] | None,
    strategies: Sequence[str],
    plan: Plan | None,
) -> Request | None:
    """Return what is to be searched for, if anything."""
    if goal is None:
        for value, name in (
            (budget, "budget"),
            (labels, "labels"),
            (strategies or None, "strategies"),
        ):
            if value is not None:
                raise ConfigError(
                    f"{name} is given, but no goal to search for: add one, such as drop<=0.5 (--goal)"
                )
        return None
    wanted = Goal(goal) if isinstance(goal, str) else goal
    if plan is not None:
        raise ConfigError(
            f"a plan is given, but goal {wanted.text!r} plans anew: give one of the two"
        )
    if wanted.needs_labels and labels is None:
        raise ConfigError(
            f"goal {wanted.text!r} needs labels: give them (--labels), or a goal without labels, "
            "such as sqnr>=25"
        )
    check_strategies(tuple(strategies))
    seconds = None if budget is None else read_budget(budget)
    return Request(wanted, budget=seconds, strategies=tuple(strategies))


def with_labels(request: Request, labels: str | Sequence[Label] | None, samples: Split) -> Request:
    """Return the request with a label for each sample, if there are any."""
    if labels is None:
        return request
    found = read_labels(labels, samples.data) if isinstance(labels, str) else list(labels)
    if len(found) != samples.total:
        raise DataError(
            f"{len(found)} labels are given for {samples.total} samples; give one for each"
        )
    return dataclasses.replace(request, labels=found)
