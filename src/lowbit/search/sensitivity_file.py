"""The results of the search for mixed precision: values, and a JSON file of them.

People set ``enabled`` to false there for layers that are to stay.
"""

from __future__ import annotations

import hashlib
import pathlib

import msgspec

from lowbit.config.extensible import decode_json
from lowbit.config.mixed_precision import MixedPrecision
from lowbit.errors import ConfigError, OutputError
from lowbit.state import Planned
from lowbit.version import __version__


class LayerSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """One layer, or several that change together.

    Attributes:
        name: The layer or subgraph.
        nodes: Its layers.
        option: The number of the option that is best for it.
        score: The distance of the output with only these layers in that option.
        scores: The same of every option it has.
        enabled: Whether it may change at all.
        changed: Whether it does.
        after: The distance with it and all layers changed before, where that was measured.
    """

    name: str
    nodes: tuple[str, ...]
    option: int
    score: float
    scores: tuple[float, ...]
    enabled: bool = True
    changed: bool = False
    after: float | None = None


class MixedPrecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """All layers, the one that does least harm first, and the distances before and after."""

    metric: str
    baseline: float
    score: float
    layers: tuple[LayerSensitivity, ...] = ()
    note: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """The layers in other formats."""
        return tuple(node for row in self.layers if row.changed for node in row.nodes)

    def describe(self) -> str:
        """Return a sentence for the report."""
        every = sum(len(row.nodes) for row in self.layers)
        words = f"mixed precision: {len(self.changed)} of {every} layers in another format, "
        words += f"{self.metric} {self.baseline:.4g} -> {self.score:.4g}"
        return f"{words} ({self.note})" if self.note else words


class _Row(msgspec.Struct, kw_only=True):
    name: str
    candidate_nodes: tuple[str, ...]
    score: float
    all_config_scores: tuple[float, ...]
    best_config_index: int
    enabled: bool = True


class _File(msgspec.Struct, kw_only=True):
    version: str
    cache_key: str
    results: tuple[_Row, ...]


def read_sensitivities(
    path: str, base: Planned, config: MixedPrecision
) -> tuple[LayerSensitivity, ...] | None:
    """Return what the file holds, or nothing if there is none or it is of another search."""
    file = pathlib.Path(path)
    if not file.exists():
        return None
    try:
        known = decode_json(file.read_bytes(), _File)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"mixed_precision.cache {path} holds no sensitivities: {error}"
        ) from error
    if known.cache_key != _key(base, config):
        return None
    for row in known.results:
        _check_row(row, path, base, config)
    return tuple(
        LayerSensitivity(
            name=row.name,
            nodes=row.candidate_nodes,
            option=row.best_config_index,
            score=row.score,
            scores=row.all_config_scores,
            enabled=row.enabled,
        )
        for row in known.results
    )


def _check_row(row: _Row, path: str, base: Planned, config: MixedPrecision) -> None:
    """Raise for a row that people edited to what the search cannot use."""
    options = len(config.options)
    unknown = set(row.candidate_nodes) - {node.name for node in base.adapted.graph}
    wrong = None
    if not row.candidate_nodes or unknown:
        wrong = (
            f"candidate_nodes names {sorted(unknown) or 'nothing'}, which the model does not have"
        )
    elif not 0 <= row.best_config_index < options:
        wrong = f"best_config_index is {row.best_config_index}, expected 0 to {options - 1}"
    elif len(row.all_config_scores) > options:
        wrong = f"all_config_scores has {len(row.all_config_scores)} scores for {options} options"
    if wrong is not None:
        raise ConfigError(
            f"mixed_precision.cache {path}, row {row.name!r}: {wrong}; remove the file to measure again"
        )


def write_sensitivities(
    path: str, rows: tuple[LayerSensitivity, ...], base: Planned, config: MixedPrecision
) -> None:
    """Write what was measured."""
    results = tuple(
        _Row(
            name=row.name,
            candidate_nodes=row.nodes,
            score=row.score,
            all_config_scores=row.scores,
            best_config_index=row.option,
            enabled=row.enabled,
        )
        for row in rows
    )
    made = _File(version=__version__, cache_key=_key(base, config), results=results)
    text = msgspec.json.format(msgspec.json.encode(made), indent=2)
    file = pathlib.Path(path)
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.write_bytes(text + b"\n")
        partial.replace(file)
    except OSError as error:
        raise OutputError(
            f"cannot write mixed_precision.cache {path}: {error.strerror or error}"
        ) from error


def _key(base: Planned, config: MixedPrecision) -> str:
    """Return a word for all that scores depend on but the numbers of weights and data."""
    lasting = msgspec.structs.replace(
        config,
        threshold=None,
        objective="speed",
        most=None,
        ranks=(),
        not_ranks=(),
        cache=None,
        workers=1,
        requantize=False,
    )
    nodes = [
        (n.name, n.op_type, [v.name if v else "" for v in n.inputs], [v.name for v in n.outputs])
        for n in base.adapted.graph
    ]
    plan = msgspec.json.encode(base.plan)
    return hashlib.sha256(msgspec.json.encode((nodes, lasting)) + plan).hexdigest()
