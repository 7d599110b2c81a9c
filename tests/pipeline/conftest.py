"""A model as it was loaded, with samples, to go through the stages with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.config.presets import find_preset
from lowbit.data import open_data
from lowbit.data.split import split
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.ops.traits import OPERATORS
from lowbit.state import Loaded
from lowbit.targets.builtin import find_target


@pytest.fixture
def load() -> Callable[..., Loaded]:
    """Return a function of model, feeds, preset and changes to it; it skips optional steps."""

    def make(model=None, feeds=None, preset: str = "A8W8", **changes: object) -> Loaded:
        plain = {
            "refinement": None,
            "keep_only_if_better": False,
            "equalization": None,
            "smooth_quant": None,
            "bias_correction": False,
        }
        config = msgspec.structs.replace(find_preset(preset), **{**plain, **changes})
        loaded = io.load(small_cnn() if model is None else model)
        samples = None
        if feeds is not False:
            data = small_feeds(6) if feeds is None else feeds
            samples = split(open_data(data, model_inputs(loaded)), None, 2)
        return Loaded(
            loaded=loaded,
            samples=samples,
            config=config,
            target=find_target(config.target),
            operators=OPERATORS,
        )

    return make
