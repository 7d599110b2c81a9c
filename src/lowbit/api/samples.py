"""The samples of a run: opened, divided, and asked for where they are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.data import Preprocessing, Tokenization, open_data
from lowbit.data.split import VERIFIED, Split, split, split_for_goal, validation_count
from lowbit.errors import DataError
from lowbit.evaluate.generated_texts import generate_texts
from lowbit.graph.session import Feed, model_inputs
from lowbit.search.goal_search import Request
from lowbit.search.keep_if_better import has_optional_steps
from lowbit.state import Loaded


def open_samples(
    state: Loaded,
    data: Any,
    preprocessing: Preprocessing | Tokenization | str | None,
    limit: int | None,
    held_out: tuple[int | None, int],
    request: Request | None,
    *,
    stops_early: bool = False,
) -> Split | None:
    """Open the data; ``held_out`` is how many samples verify, if that is asked for, and how many validate.

    Where none is given and layers could be refined on some, a language model writes its own. ``stops_early``:
    where fewer than the usual number verify without a doubt, no more do.
    """
    asked, validating = held_out
    verifying = VERIFIED if asked is None else asked
    found = _opened(state, data, preprocessing, limit, (verifying, validating), request)
    if found is None or not stops_early or asked is not None:
        return found
    return dataclasses.replace(found, stops_early=True)


def _opened(
    state: Loaded,
    data: Any,
    preprocessing: Preprocessing | Tokenization | str | None,
    limit: int | None,
    held_out: tuple[int, int],
    request: Request | None,
) -> Split | None:
    if data is None:
        own = None if state.config.refinement is None else generate_texts(state.loaded)
        return None if own is None else split(own, None, held_out[0])
    kept = None if limit is None or request is not None else limit + sum(held_out)
    inputs = model_inputs(state.loaded)
    opened = open_data(
        data,
        inputs,
        preprocessing=preprocessing,
        limit=kept,
        padding=state.target.calibrate_padding,
    )
    if request is None:
        return split(opened, limit, *held_out)
    if opened.is_random:
        raise DataError(
            f"goal {request.goal.text!r} cannot be measured on random data: give real samples (--data)"
        )
    return split_for_goal(opened, limit, held_out[0])


def check_needs_no_data(
    config: QuantConfig, min_sqnr: float | None, request: Request | None = None
) -> None:
    """Raise if what is asked for cannot be had without samples."""
    why = config.needs_data
    if why is None and min_sqnr is not None:
        why = f"an SQNR of {min_sqnr:g} dB is measured"
    if why is None and request is not None:
        why = f"{request.goal.text} is measured"
    if why is not None:
        raise DataError(
            f"{config.name} needs data, because {why}: give samples as data (--data). The presets "
            "DYNAMIC8, W8 and W4 need none"
        )


def calibration_feeds(samples: Split | None) -> Callable[[], Iterable[Feed]]:
    """Return what yields the samples to calibrate on; none where there is no data."""
    if samples is None:
        return tuple
    return samples.calibration


def validated_on(config: QuantConfig, stats: Stats | None, limit: int) -> int:
    """Return how many samples more are read to decide which steps are kept."""
    return validation_count(limit) if stats is None and has_optional_steps(config) else 0
