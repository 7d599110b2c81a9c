"""From a loaded model to a quantized graph, for one configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import msgspec
import onnx_ir as ir

from lowbit.calibrate.collect import collect
from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json
from lowbit.data import Data
from lowbit.data.split import Replay, Split
from lowbit.emit.emit import emit_qdq
from lowbit.graph.session import Feed
from lowbit.pipeline.clock import Clock
from lowbit.pipeline.preparing import Prepared, prepare
from lowbit.planning import Plan, make_plan
from lowbit.planning.head import find_head
from lowbit.planning.plan import check_fit
from lowbit.refine.bias_correction import corrected_biases
from lowbit.scales.conflicts import coarse_averages, scale_conflicts
from lowbit.scales.parameters import Params
from lowbit.scales.solve import resolve, settle_biases
from lowbit.scales.stored import Weights, nearest
from lowbit.targets import Target
from lowbit.version import __version__


def emit(built: Built) -> ir.Model:
    """Return the quantized model."""
    config = built.config
    return emit_qdq(
        built.ready.adapted,
        built.plan,
        built.params,
        built.weights,
        domain=config.domain,
        casts=config.casts,
        half_weights=config.half_weights,
    )


def sign(quantized: ir.Model, built: Built, data: Data) -> None:
    """Write into the model's metadata how it was made."""
    quantized.producer_name, quantized.producer_version = "lowbit", __version__
    quantized.metadata_props.update(
        {
            "lowbit.version": __version__,
            "lowbit.preset": built.plan.preset,
            "lowbit.target": built.plan.target,
            "lowbit.config": config_json(built.config),
            "lowbit.data": f"{data.description} (sha256 {data.fingerprint()})",
        }
    )


Feeds = Callable[[], Iterable[Feed]]


@dataclasses.dataclass(frozen=True, slots=True)
class Built:
    """One way to quantize a model, complete but for refinement by data and emission."""

    config: QuantConfig
    ready: Prepared
    plan: Plan
    stats: Stats
    params: Params
    weights: Weights


@dataclasses.dataclass(frozen=True, slots=True)
class Builder:
    """Builds ways to quantize one model from one set of samples.

    ``means``: whether statistics are to hold what bias correction reads, asked for yet or not.
    """

    loaded: ir.Model
    samples: Split
    clock: Clock
    target: Target | None = None
    keep_histograms: bool = False
    means: bool = False

    def build(
        self,
        config: QuantConfig,
        feeds: Feeds,
        *,
        plan: Plan | None = None,
        stats: Stats | None = None,
    ) -> Built:
        """Go from the loaded model to weights, calibrating on ``feeds`` unless there are stats."""
        clock = self.clock
        with clock.stage("normalize"):
            first, data = self.samples.first(), Replay(self.samples.calibration)
            ready = prepare(self.loaded, config, first, data, target=self.target)
        with clock.stage("plan"):
            chosen = plan or make_plan(ready.adapted, config, ready.target)
            check_fit(chosen, ready.adapted)
        with clock.stage("calibrate"):
            known = stats or self.collect(ready, chosen, feeds)
            if plan is None and _destroys_head(ready, chosen, known):
                config = msgspec.structs.replace(config, head="float")
                ready = prepare(self.loaded, config, equalized=ready.equalized, target=self.target)
                chosen = make_plan(ready.adapted, config, ready.target)
                if any(name not in known.tensors for name in chosen.observed()):
                    known = stats or self.collect(ready, chosen, feeds)
        return self.solve(config, ready, chosen, known)

    def collect(self, ready: Prepared, plan: Plan, feeds: Feeds) -> Stats:
        """Return the statistics the plan needs of these feeds."""
        total = self.samples.calibration_count
        found = collect(
            ready.observed,
            plan,
            feeds(),
            twins=ready.twins,
            everything=self.keep_histograms,
            means=self.means,
            optimize="all" if ready.target.calibrate_optimized else "none",
            progress=lambda done: self.clock.tell("calibrate", done, total),
        )
        config = ready.config
        return dataclasses.replace(
            found,
            equalized=config.equalization is not None,
            smoothed=config.smooth_quant is not None,
        )

    def solve(self, config: QuantConfig, ready: Prepared, plan: Plan, stats: Stats) -> Built:
        """Resolve all parameters from statistics, round the weights and correct the biases."""
        ready = dataclasses.replace(ready, config=config)
        with self.clock.stage("resolve"):
            params = resolve(ready.adapted, plan, stats, ready.target)
            weights = nearest(ready.adapted, plan, params)
        with self.clock.stage("refine"):
            if config.bias_correction:
                values = corrected_biases(ready.adapted, plan, params, stats, weights, ready.twins)
                params = settle_biases(ready.adapted, plan, params, ready.target, values)
                weights = nearest(ready.adapted, plan, params)
        return Built(config, ready, plan, stats, params, weights)


def _destroys_head(ready: Prepared, plan: Plan, stats: Stats) -> bool:
    """Whether tensors in the tail of the graph must share a scale that ruins one of them."""
    if ready.config.head != "auto":
        return False
    if any(name not in stats.tensors for name in plan.observed()):
        # Statistics kept from a run that came to this conclusion lack the tail's tensors.
        return True
    tail = set(find_head(ready.adapted.graph).nodes)
    joins = (*scale_conflicts(plan, stats), *coarse_averages(plan, stats))
    return any(join.node in tail for join in joins)
