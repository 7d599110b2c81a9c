"""Small makers of inputs and images that the tests of ``lowbit.data`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lowbit.data import InputInfo


@pytest.fixture
def image_input() -> InputInfo:
    return InputInfo("image", np.dtype(np.float32), (1, 3, 8, 8))


@pytest.fixture
def vector_input() -> InputInfo:
    return InputInfo("x", np.dtype(np.float32), ("batch", 4))


@pytest.fixture
def two_inputs() -> list[InputInfo]:
    return [
        InputInfo("a/b:0", np.dtype(np.float32), ("n", 3)),
        InputInfo("ids", np.dtype(np.int64), ("n", 2)),
    ]


@pytest.fixture
def save_image() -> Callable[..., np.ndarray]:
    """Write a random image without loss and return its pixels."""

    def save(path: Path, height: int = 8, width: int = 8, *, seed: int = 0) -> np.ndarray:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return save
