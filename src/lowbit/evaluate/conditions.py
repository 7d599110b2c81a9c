"""Conditions on figures, as people write them: ``top1_drop>1``, ``sqnr>=25``, ``agreement>=98%``."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from lowbit.errors import ConfigError

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
)
_FORM = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(>=|<=|>|<)\s*([-+\d.eE]+)\s*(%?)\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """A figure, a comparison and a number; ``percent`` if the number was written with its sign."""

    text: str
    figure: str
    comparison: str
    limit: float
    percent: bool = False

    @property
    def is_lower_limit(self) -> bool:
        """Whether figures above the limit meet it."""
        return self.comparison.startswith(">")

    def holds(self, value: float) -> bool:
        """Whether a value meets it; what is no number meets nothing."""
        return _COMPARISONS[self.comparison](value, self.limit)


def read_condition(text: str, kind: str, example: str) -> Condition:
    """Return the condition in a text; errors call it a ``kind`` and show an example."""
    match = _FORM.fullmatch(text)
    try:
        limit = float(match[3]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or math.isnan(limit):
        form = f"FIGURE{'>=' if '>=' in example else '<=' if '<=' in example else '>'}NUMBER"
        raise ConfigError(f"{kind} {text!r} is not of the form {form}, such as {example}")
    return Condition(text.strip(), match[1], match[2], limit, match[4] == "%")
