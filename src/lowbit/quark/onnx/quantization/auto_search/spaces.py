"""Search spaces as Quark writes them: options with their values, and options that depend on others."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationMethod

from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.legacy import QuantizationConfig

Space = Mapping[str, Any]
Choice = dict[str, Any]
_ONLY_IF = "only_if"
_OPTIONS, _FINETUNE = "extra_options", "FastFinetune"


def generate_all_configs(search_space: Space) -> list[Choice]:
    """Return every choice of a discrete space; groups with ``only_if`` are there where it holds."""
    plain = {key: value for key, value in search_space.items() if isinstance(value, list)}
    groups = {key: _checked(key, value) for key, value in search_space.items() if key not in plain}
    found: list[Choice] = []
    for values in itertools.product(*plain.values()):
        choices: list[Choice] = [dict(zip(plain, values, strict=True))]
        for name, group in groups.items():
            choices = [one for choice in choices for one in _with_group(choice, name, group)]
        found += choices
    return copy.deepcopy(found)


def _checked(name: str, group: Any) -> Space:
    if not isinstance(group, Mapping):
        raise QuarkConfigError(
            f"search space: {name!r} is a {type(group).__name__}; expected a list, or a dictionary "
            "with 'only_if'"
        )
    if _ONLY_IF not in group:
        raise QuarkConfigError(f"search space: the dictionary {name!r} lacks 'only_if'")
    for key, values in group.items():
        if key != _ONLY_IF and not isinstance(values, list):
            raise QuarkConfigError(
                f"search space: {name}.{key} is a {type(values).__name__}, and all choices of it are "
                "asked for; expected a list"
            )
    return group


def _with_group(choice: Choice, name: str, group: Space) -> Iterator[Choice]:
    keys = [key for key in group if key != _ONLY_IF]
    if not holds(choice, group[_ONLY_IF]) or not keys:
        yield choice
        return
    for values in itertools.product(*(group[key] for key in keys)):
        yield {**choice, name: dict(zip(keys, values, strict=True))}


def holds(choice: Choice, condition: Any) -> bool:
    """Whether the options chosen so far allow a group that depends on them."""
    if isinstance(condition, str):
        return choice.get(condition) is not None
    if isinstance(condition, Mapping):
        return all(choice.get(key) == value for key, value in condition.items())
    return False


def is_range(value: Any) -> bool:
    """Whether an option is any number between two, not one of a list."""
    return isinstance(value, Mapping) and value.get("type") in ("int", "float")


def choices_of(search_space: Space) -> float:
    """Return how many choices a space has; infinite if it holds a range."""
    whole = 1.0
    for value in search_space.values():
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if is_range(part):
                return math.inf
            if isinstance(part, list):
                whole *= len(part)
    return whole


class SearchSpace:
    """The space of the older search: fields of a configuration, extra options, and FastFinetune's."""

    def __init__(self, conf: dict[str, Any], logger: Any = None) -> None:
        del logger
        self.raw_search_space = conf
        self.level1_space_config, self.level2_space_config, self.level3_space_config = levels(conf)
        self.all_configs: list[Choice] = []
        for name in self.level1_space_config:
            if name not in QuantizationConfig.__dataclass_fields__:
                say(f"search space: {name!r} is no option, and is left out")
        self.level1_space_config = {
            name: values
            for name, values in self.level1_space_config.items()
            if name in QuantizationConfig.__dataclass_fields__
        }

    def get_all_configs(self) -> list[Choice]:
        """Return every choice, the last option changing fastest."""
        self.all_configs = []
        parts = (self.level1_space_config, self.level2_space_config, self.level3_space_config)
        for first, second, third in itertools.product(*map(_products, parts)):
            choice = copy.deepcopy(first)
            if second or third:
                choice[_OPTIONS] = copy.deepcopy(second)
            if third:
                choice[_OPTIONS][_FINETUNE] = copy.deepcopy(third)
            self.all_configs.append(choice)
        return self.all_configs

    def remove_invalid_configs(self, input_all_coinfgs: list[Choice]) -> list[Choice]:
        """Return the choices without options that have no effect, each once."""
        found: list[Choice] = []
        for choice in input_all_coinfgs:
            kept = _with_effect(choice)
            if kept not in found:
                found.append(kept)
        return found


def levels(choice: Space) -> tuple[Choice, Choice, Choice]:
    """Return fields of a configuration, extra options and FastFinetune's options apart."""
    first = {key: value for key, value in choice.items() if key != _OPTIONS}
    options = choice.get(_OPTIONS) or {}
    second = {key: value for key, value in options.items() if key != _FINETUNE}
    return copy.deepcopy(first), copy.deepcopy(second), copy.deepcopy(options.get(_FINETUNE) or {})


def _products(space: Space) -> list[Choice]:
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


_NEEDS: tuple[tuple[str, str, Any], ...] = (
    ("CalibMovingAverage", "calibrate_method", CalibrationMethod.MinMax),
    ("CalibMovingAverageConstant", "calibrate_method", CalibrationMethod.MinMax),
    ("Percentile", "calibrate_method", CalibrationMethod.Percentile),
    ("SmoothAlpha", "include_sq", True),
)


def _with_effect(choice: Choice) -> Choice:
    first, second, third = levels(choice)
    for option, field, value in _NEEDS:
        if first.get(field) != value:
            second.pop(option, None)
    if not second.get("CalibMovingAverage"):
        second.pop("CalibMovingAverageConstant", None)
    if first.get("include_fast_ft") and third:
        second[_FINETUNE] = third
    return {**first, _OPTIONS: second} if second else first
