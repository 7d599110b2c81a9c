"""Readers as Quark scripts have them, quiet configurations, and a Python of one's own."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from onnxruntime.quantization.calibrate import CalibrationDataReader

import lowbit
from lowbit.quark.extension.targets import QUARK_EXTENDED
from lowbit.quark.onnx import Config, QuantizationConfig
from lowbit.quark.onnx.quantization.config import get_default_config

# What the options of BF16 and of block formats make of the extended flow.
QUARK_FLOAT = msgspec.structs.replace(
    QUARK_EXTENDED,
    name="quark-float",
    description="AMD Quark's extended flow over every operator (BF16)",
    every_operator=True,
    align=(),
)

QUARK_BLOCK = msgspec.structs.replace(
    QUARK_EXTENDED,
    name="quark-block",
    description="AMD Quark's extended flow for block formats (BFP16, MX)",
    data_movement="after_quantized",
    align=(),
    fuse=(),
)


class ListReader(CalibrationDataReader):
    """A reader of feeds kept in memory, without a way to start again."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


class BareReader:
    """A reader that inherits nothing."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds = list(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.feeds.pop(0) if self.feeds else None


def run_python(
    *arguments: str, cwd: pathlib.Path, more_path: str = ""
) -> subprocess.CompletedProcess:
    """Run Python with this lowbit, wherever it is, and perhaps another folder of packages."""
    source = str(pathlib.Path(lowbit.__file__).parents[1])
    path = os.pathsep.join(part for part in (source, more_path) if part)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def quiet(
    preset: str | QuantizationConfig, options: Mapping[str, Any] | None = None, **changes: Any
) -> Config:
    """Return a preset that prints nothing, with some extra options and fields changed."""
    config = get_default_config(preset) if isinstance(preset, str) else preset
    extra = {**config.extra_options, **(options or {})}
    changes = {"extra_options": extra, **changes}
    return Config(dataclasses.replace(config, print_summary=False, **changes))
