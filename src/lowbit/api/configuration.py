"""The configuration of a run, from a preset or a value, a plan, and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from lowbit.config import DEFAULT_PRESET
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import find_not_finite
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError
from lowbit.planning.plan import Plan


def choose_config(
    preset: str | None, config: QuantConfig | None, plan: Plan | None = None
) -> QuantConfig:
    """Return the configuration that is asked for, with tensors rescaled as in a given plan."""
    if preset is not None and config is not None:
        raise ConfigError("give a preset or a config, not both")
    if isinstance(config, str):
        raise ConfigError(
            f"config is the text {config!r}, expected a QuantConfig: give preset={config!r}"
        )
    config = config if config is not None else find_preset(preset or DEFAULT_PRESET)
    wrong = find_not_finite(config)
    if wrong is not None:
        raise ConfigError(f"config.{wrong}; expected a finite number")
    return config if plan is None else msgspec.structs.replace(config, rescaling=plan.rescaling)


def with_inputs(
    config: QuantConfig,
    fixed: Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int | str | None]] | None,
) -> QuantConfig:
    """Return the configuration with inputs fixed and reshaped as well."""
    values = {name: np.asarray(value).tolist() for name, value in (fixed or {}).items()}
    sizes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    return msgspec.structs.replace(
        config,
        fix_inputs={**config.fix_inputs, **values},
        input_shapes={**config.input_shapes, **sizes},
    )
