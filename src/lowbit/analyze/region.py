"""The region of a network that brings most of the error of its outputs.

Where many tensors add a little each, none of them shows it, and the fix of any one brings nothing. So the graph
is cut along its order, each part is quantized alone, and the run of neighbouring parts whose share of
the noise is most above its share of the cost is cut finer at its ends. What it brings in float is measured as
a whole.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer
from lowbit.analyze.sensitivity import Switch, Variant, VariantRunner
from lowbit.config.specs import Rule
from lowbit.evaluate.cost import NodeCost
from lowbit.numerics.metrics import decibels
from lowbit.numerics.spacing import even_bounds
from lowbit.ops.quantizing import CONVERTERS
from lowbit.report.values import PromotedRegion, Promotion

_PARTS, _CUT_AGAIN = 12, 4
"""Parts of the graph, and how often those at the ends of a region are cut in two."""

_SAMPLES = 2
"""Samples that parts are measured on; the region is measured on all."""

_CONCENTRATED = 0.4
"""The least excess of a region's share of the noise over its share of the cost."""

_WORTH_DB, _COST_OF_DB = 3.0, 0.01
"""The least gain of a region to be reported, and the share of the cost that a decibel may take."""

MUCH_NOISE = 0.01
"""A model with less noise, as a share of its signal, needs no region in float."""

_FEW = 5
"""A region of at most this many tensors is not reported: the error budget shows each of them."""

_SHARE_OF_NODES = 0.1
"""The share of the number of nodes in the cost, in addition to the multiply-adds."""

_LITTLE = 0.1
"""A region is also tried from the start or to the end of the graph where that costs less."""

_MOST_ENDS = 12
"""A region with more first and last nodes is described by the names of all its nodes."""

_ON = np.array(True)
_Run: TypeAlias = tuple[int, int]
"""A run of nodes: the number of the first, and of the one after the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class OrderedNodes:
    """Nodes of a quantized model without its Q/DQ nodes, and where tensors are used.

    ``products`` are their shares of the multiply-adds, ``used`` the numbers of the first and the last node
    around a tensor.
    """

    nodes: tuple[ir.Node, ...]
    products: tuple[float, ...]
    used: Mapping[str, _Run]

    @classmethod
    def of(
        cls, model: ir.Model, quantizers: Sequence[Quantizer], costs: Mapping[str, NodeCost]
    ) -> OrderedNodes:
        """Return those of a model."""
        nodes = tuple(n for n in model.graph if n.op_type not in CONVERTERS)
        order = {node: index for index, node in enumerate(nodes)}
        values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
        used = {}
        for quantizer in quantizers:
            readers = [n for name in quantizer.results for n in values[name].consumers()]
            writer = values[quantizer.source].producer() if quantizer.source in values else None
            around = [order[n] for n in (*readers, writer) if n in order]
            if around:
                used[quantizer.tensor] = (min(around), max(around))
        products = [costs.get(str(node.name), NodeCost(0, 0)).multiply_adds for node in nodes]
        total = sum(products) or 1
        return cls(nodes, tuple(product / total for product in products), used)

    def inside(self, run: _Run) -> list[str]:
        """Return the tensors that are used by nodes of a run alone."""
        return [n for n, (low, high) in self.used.items() if run[0] <= low and high < run[1]]

    def touching(self, run: _Run) -> list[str]:
        """Return the tensors that a run uses."""
        return [n for n, (low, high) in self.used.items() if low < run[1] and run[0] <= high]

    def multiply_adds(self, run: _Run) -> float:
        """Return the share of the multiply-adds of a run."""
        return sum(self.products[run[0] : run[1]])

    def cost(self, run: _Run) -> float:
        """Return the share of the cost of a run: of the multiply-adds for the most part, and of the nodes."""
        nodes = (run[1] - run[0]) / len(self.nodes)
        return (1 - _SHARE_OF_NODES) * self.multiply_adds(run) + _SHARE_OF_NODES * nodes


@dataclasses.dataclass(frozen=True, slots=True)
class RegionFinder:
    """Measures runs of nodes in one model; ``switches`` are those of the tensors that are to be quantized.

    A refined weight makes up for the quantizers before it, so that it is no measure of a model in which some are
    switched off: then the weights had better stay in float.
    """

    order: OrderedNodes
    runner: VariantRunner
    switches: Mapping[str, Switch]

    def find(self, samples: int) -> _Run | None:
        """Return the run with the most noise for what it costs, if the noise is concentrated somewhere."""
        few = min(samples, _SAMPLES)
        parts = _split((0, len(self.order.nodes)), _PARTS)
        noises = self._alone(parts, few)
        first, last = self._best(parts, noises)
        for _ in range(_CUT_AGAIN):
            ends = {p for p in (first, last) if parts[p][1] - parts[p][0] > 1}
            if not ends:
                break
            pieces = {p: _split(parts[p], 2) for p in ends}
            measured = iter(self._alone(list(itertools.chain(*pieces.values())), few))
            found = {p: [next(measured) for _ in some] for p, some in pieces.items()}
            numbers = range(len(parts))
            noises = [n for p in numbers for n in found.get(p, [noises[p]])]
            parts = [run for p in numbers for run in pieces.get(p, [parts[p]])]
            first, last = self._best(parts, noises)
        run = (parts[first][0], parts[last][1])
        share = sum(noises[first : last + 1]) / (sum(noises) or 1.0)
        return run if share - self.order.cost(run) > _CONCENTRATED else None

    def in_float(self, run: _Run, samples: int) -> float:
        """Return the outputs' noise with a run in float, all else quantized."""
        off = set(self.order.inside(run))
        return self.runner.noise([self._variant(set(self.switches) - off)], samples)[0]

    def _alone(self, runs: Sequence[_Run], samples: int) -> list[float]:
        """Return the noise with each run quantized alone."""
        variants = [self._variant(self.order.touching(run)) for run in runs]
        rest = self.runner.noise_of("float", samples)
        return [max(0.0, n - rest) for n in self.runner.noise(variants, samples)]

    def _variant(self, quantized: Iterable[str]) -> Variant:
        """Return the model with these tensors quantized and no others."""
        on = [s for name in quantized if (s := self.switches.get(name)) is not None]
        return Variant(
            "float", {s.name: _ON for s in on}, min((s.first_node for s in on), default=0)
        )

    def _best(self, parts: Sequence[_Run], noises: Sequence[float]) -> tuple[int, int]:
        """Return the first and the last of neighbouring parts with most noise above what they cost."""
        total = sum(noises) or 1.0
        gains = [n / total - self.order.cost(p) for n, p in zip(noises, parts, strict=True)]
        sums = [0.0, *itertools.accumulate(gains)]
        runs = itertools.combinations(range(len(sums)), 2)
        start, end = max(runs, key=lambda ends: (sums[ends[1]] - sums[ends[0]], ends[0] - ends[1]))
        return start, end - 1


def find_region(finder: RegionFinder, samples: int) -> Promotion | None:
    """Return the region of most noise and what it brings in float, if that is much."""
    now = finder.in_float((0, 0), samples)
    found = finder.find(samples) if 0 < now < math.inf else None
    if found is None:
        return None
    noises = {run: finder.in_float(run, samples) for run in _extended(finder.order, found)}
    run = min(noises, key=lambda r: -decibels(1.0, noises[r]) + finder.order.cost(r) / _COST_OF_DB)
    noise = noises[run]
    gain_db = decibels(1.0, noise) - decibels(1.0, now)
    if gain_db < _WORTH_DB or len(finder.order.inside(run)) <= _FEW:
        return None
    nodes = finder.order.nodes[run[0] : run[1]]
    region = PromotedRegion(
        first=str(nodes[0].name),
        last=str(nodes[-1].name),
        nodes=len(nodes),
        format="float",
        multiply_adds=finder.order.multiply_adds(run),
        elements=0.0,
        why="most of the error arises there",
    )
    return Promotion(
        words=f"the region with most of the error, {region.describe()}",
        tensors=tuple(finder.order.inside(run)),
        sqnr_db=decibels(1.0, noise),
        gain_db=gain_db,
        noise_recovered=1 - noise / now,
        config=_line(nodes),
    )


def _extended(order: OrderedNodes, run: _Run) -> list[_Run]:
    """Return a run, and the same from the start or to the end of the graph, where that costs little."""
    runs = dict.fromkeys((run, (0, run[1]), (run[0], len(order.nodes))))
    return [r for r in runs if order.cost(r) - order.cost(run) < _LITTLE]


def _line(nodes: Sequence[ir.Node]) -> str:
    """Return what leaves a region in float: by its first and last nodes, if they are few.

    Whatever lies on a path between two nodes of a run lies in it.
    """
    own = set(nodes)
    first = [str(n.name) for n in nodes if own.isdisjoint(_neighbours(n, after=False))]
    last = [str(n.name) for n in nodes if own.isdisjoint(_neighbours(n, after=True))]
    rule = Rule(nodes=tuple(str(n.name) for n in nodes), exclude=True)
    if len(first) + len(last) <= min(_MOST_ENDS, len(nodes)):
        rule = Rule(start=tuple(first), end=tuple(last), exclude=True)
    given = {name: value for name, value in msgspec.structs.asdict(rule).items() if value}
    return msgspec.json.encode({"rules": [given]}).decode()


def _neighbours(node: ir.Node, *, after: bool) -> Iterator[ir.Node]:
    """Yield the nodes that one reads, or those ``after`` it that read it, through Q/DQ nodes."""
    for found in node.successors() if after else node.predecessors():
        if found.op_type in CONVERTERS:
            yield from _neighbours(found, after=after)
        else:
            yield found


def _split(run: _Run, parts: int) -> list[_Run]:
    """Return runs of nearly equal length."""
    bounds = even_bounds(run[1] - run[0], parts)
    return [(run[0] + a, run[0] + b) for a, b in itertools.pairwise(bounds)]
