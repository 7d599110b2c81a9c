"""What mixed precision measured and decided, as a value."""

from __future__ import annotations

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One layer, or several that change together.

    Attributes:
        name: The layer or subgraph.
        nodes: Its layers.
        option: The number of the option that is best for it.
        score: The distance of the output with these layers alone in that option.
        scores: The same of every option it has.
        enabled: Whether it may change at all.
        taken: Whether it does.
        after: The distance with it and all layers taken before, where that was measured.
    """

    name: str
    nodes: tuple[str, ...]
    option: int
    score: float
    scores: tuple[float, ...]
    enabled: bool = True
    taken: bool = False
    after: float | None = None


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """All layers, the one that does least harm first, and the distances before and after."""

    metric: str
    baseline: float
    score: float
    layers: tuple[Measured, ...] = ()
    note: str = ""

    @property
    def taken(self) -> tuple[str, ...]:
        """The layers in other formats."""
        return tuple(node for row in self.layers if row.taken for node in row.nodes)

    def describe(self) -> str:
        """Return a sentence for the report."""
        every = sum(len(row.nodes) for row in self.layers)
        words = f"mixed precision: {len(self.taken)} of {every} layers in another format, "
        words += f"{self.metric} {self.baseline:.4g} -> {self.score:.4g}"
        return f"{words} ({self.note})" if self.note else words
