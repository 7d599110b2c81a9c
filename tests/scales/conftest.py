"""The state up to quantization parameters, of graphs written as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from helpers.staged import solved

from lowbit.config.config import QuantConfig
from lowbit.state import Solved


@pytest.fixture
def solve_text() -> Callable[..., Solved]:
    def run(text: str, config: QuantConfig, size: float = 1.0, samples: int = 3) -> Solved:
        model = ir.from_onnx_text(text)
        rng = np.random.default_rng(0)
        feeds = [
            {
                str(value.name): (rng.normal(size=tuple(value.shape)) * size).astype(np.float32)
                for value in model.graph.inputs
            }
            for _ in range(samples)
        ]
        return solved(model, config, feeds)

    return run
