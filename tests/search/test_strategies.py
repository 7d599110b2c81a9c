"""Which search does the work: the package's own, or one that a configuration brings along."""

from __future__ import annotations

import msgspec
from helpers.three_layers import INT8, INT16, TO_INT8, three_layers, three_layers_feeds

import lowbit
from lowbit import QuantConfig
from lowbit.config import mixed_precision
from lowbit.config.mixed_precision import MixedPrecision, PrecisionSearch
from lowbit.search import strategies
from lowbit.search.mixed_precision import search_by_sensitivity
from lowbit.search.sensitivity_file import MixedPrecisionResult


class EveryOther(
    PrecisionSearch, msgspec.Struct, frozen=True, kw_only=True, tag="every-other-of-a-test"
):
    """A search that measures nothing: every other layer has 8-bit weights."""

    start: int = 0

    def strategy(self):
        return _every_other


def _every_other(pipeline, state, config, metric):
    layers = [node.name for node in state.adapted.graph if node.op_type == "MatMul"]
    rules = tuple(lowbit.Rule(name=name, weight=INT8) for name in layers[config.start :: 2])
    changed = lowbit.pipeline.stages.with_config(state, rules=rules, mixed_precision=None)
    built = pipeline.build(changed, state.samples.calibration)
    score = 0.0 if metric is None else metric([], [])
    return built, MixedPrecisionResult(metric="none", baseline=0.0, score=score)


def _quantize(search: PrecisionSearch, **more) -> lowbit.api.Result:
    config = QuantConfig(activation=INT16, weight=INT16, mixed_precision=search)
    return lowbit.quantize(three_layers(), data=three_layers_feeds(), config=config, **more)


def test_a_search_of_ones_own_does_the_work() -> None:
    result = _quantize(EveryOther(start=1), metric=lambda want, got: 7.0)

    formats = {row.name: row.spec.format.value for row in result.plan.weights()}
    assert formats == {"w0": "int16", "w1": "int8", "w2": "int16"}
    assert result.mixed_precision.score == 7.0
    assert "none 0 -> 7" in result.report.notes[-1]


def test_all_stages_of_a_search_are_charged_to_it() -> None:
    told = []

    result = _quantize(EveryOther(), progress=lambda stage, *_: told.append(stage))

    search = told.index("search")
    # The stages of the search's own build are not told, its progress is.
    assert set(told[search : told.index("verify")]) == {"search"}
    assert {"search", "solve", "calibrate"} <= set(result.report.seconds)


def test_the_packages_own_search_is_found_by_its_configuration() -> None:
    assert strategies.STRATEGIES[MixedPrecision] is search_by_sensitivity
    assert _quantize(MixedPrecision(options=(TO_INT8,))).mixed_precision.changed


def test_every_search_of_the_package_has_its_strategy() -> None:
    searches = {
        kind
        for kind in vars(mixed_precision).values()
        if isinstance(kind, type) and issubclass(kind, PrecisionSearch)
    }

    assert searches - {PrecisionSearch} == set(strategies.STRATEGIES)
