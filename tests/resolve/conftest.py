"""Running the stages up to the parameters on graphs written as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.api import prepare
from lowbit.calibrate.collect import collect
from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.planning import Plan, make_plan
from lowbit.scales.parameters import Params
from lowbit.scales.solve import resolve


@dataclasses.dataclass(frozen=True)
class Stages:
    """What the stages gave."""

    model: ir.Model
    plan: Plan
    stats: Stats
    params: Params


@pytest.fixture
def run_stages() -> Callable[..., Stages]:
    def run(text: str, config: QuantConfig, size: float = 1.0, samples: int = 3) -> Stages:
        ready = prepare(ir.from_onnx_text(text), config)
        plan = make_plan(ready.adapted, config, ready.target)
        rng = np.random.default_rng(0)
        feeds = [
            {
                str(value.name): (rng.normal(size=tuple(value.shape)) * size).astype(np.float32)
                for value in ready.adapted.graph.inputs
            }
            for _ in range(samples)
        ]
        stats = collect(ready.observed, plan, feeds)
        return Stages(ready.adapted, plan, stats, resolve(ready.adapted, plan, stats, ready.target))

    return run
