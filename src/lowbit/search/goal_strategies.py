"""Strategies to reach a goal, the cheapest first: each starts from the best model so far."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, Hqq, Method, MinMax, MinMse, OutputMse, Percentile
from lowbit.config.mixed_precision import LayerOption, MixedPrecision
from lowbit.config.presets import MORE_POSITIONS
from lowbit.config.refinement import AdaQuant, LayerReconstruction, Refinement
from lowbit.config.specs import IntegerSpec
from lowbit.errors import ConfigError, did_you_mean
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.files import temporary_folder
from lowbit.numerics.formats import IntegerFormat
from lowbit.search.goal_search import BETTER_DB, Candidate, GoalSearch
from lowbit.search.mixed_precision import search_by_sensitivity
from lowbit.search.promotion import Promoter
from lowbit.search.promotion_graph import wide_spec
from lowbit.search.promotion_values import Requirement
from lowbit.state import Quantized

_METHODS: tuple[tuple[str, Method], ...] = (
    ("minmax", MinMax()),
    ("mse", MinMse()),
    ("percentile 99.999", Percentile()),
    ("percentile 99.99", Percentile(percentile=99.99)),
    ("entropy", Entropy()),
)
_WEIGHT_METHODS: tuple[tuple[str, Method], ...] = (
    ("mse", MinMse()),
    ("output", OutputMse()),
    ("minmax", MinMax()),
)
_ACCURATE_COST, _TUNING_COST, _PROMOTION_COST = 3.0, 10.0, 2.0
"""How long strategies take, in refinements of the preset (tuning: in whole runs of it)."""

_SLACK_DB, _LEAST_DB = 1.5, 0.5
_STEPS_DB = (3.0, 6.0, 12.0)
"""By how much noise is lowered at a time where it is not known how much accuracy needs."""

_PROMOTIONS = 3
_LAYERS_ON = 8
_SHARES = (8, 4, 2, 1)


def try_calibration(search: GoalSearch) -> None:
    """Try other ranges of activations and weights, from the same statistics; refine the best."""
    config = search.best.built.config
    base = search.unrefined().margin_db
    tried = search.screened("calibration", list(_ranges(config)))
    best = max(tried, key=lambda t: t.margin_db, default=None)
    if best is None or best.margin_db <= base + BETTER_DB:
        return
    found = best
    search.attempt(
        "calibration",
        f"{found.what}, refined",
        lambda: search.refined(search.built(found)),
        expected=_refinement_seconds(search),
    )


def _ranges(config: QuantConfig) -> Iterator[tuple[str, QuantConfig]]:
    activation, weight = config.activation, config.weight
    if activation is not None and activation.is_integer:
        for what, method in _METHODS:
            if method != activation.calibration:
                yield f"activations by {what}", config.with_method(method)
    if weight is not None and weight.is_integer:
        methods = _WEIGHT_METHODS if activation is not None else (("hqq", Hqq()), *_WEIGHT_METHODS)
        for what, method in methods:
            if method != weight.calibration:
                spec = weight.with_method(method)
                yield f"weights by {what}", msgspec.structs.replace(config, weight=spec)


def try_reconstruction(search: GoalSearch) -> None:
    """Reconstruct layers, where the preset rounds to the nearest."""
    config = search.best.built.config
    if config.refinement is None and config.weight is not None and config.weight.is_integer:
        _attempt_refinement(search, "reconstruction", LayerReconstruction(), _whole_run(search))


def try_accurate(search: GoalSearch) -> None:
    """Refine with more time: more positions for integers, AdaQuant for other formats."""
    config = search.best.built.config
    known = config.refinement
    if isinstance(known, LayerReconstruction) and known.positions < MORE_POSITIONS.positions:
        expected = _ACCURATE_COST * _refinement_seconds(search)
        _attempt_refinement(search, "accurate", MORE_POSITIONS, expected)
    elif known is None and config.weight is not None and not config.weight.is_integer:
        _attempt_refinement(search, "accurate", AdaQuant(), _TUNING_COST * _whole_run(search))


def _attempt_refinement(
    search: GoalSearch, strategy: str, refinement: Refinement, expected: float
) -> None:
    def make() -> Candidate:
        config = msgspec.structs.replace(search.best.built.config, refinement=refinement)
        return search.refined(search.pipeline.rebuilt(search.best.built, config))

    search.attempt(
        strategy, f"{type(refinement).__name__} {_given(refinement)}", make, expected=expected
    )


def _given(refinement: Refinement) -> str:
    positions = getattr(refinement, "positions", None)
    return "" if positions is None else f"of {positions} positions"


def try_promotion(search: GoalSearch) -> None:
    """Promote regions to 16 bits or to float, the least that is enough, then more."""
    for attempt in range(_PROMOTIONS):
        required = _requirement(search, attempt)
        step = f"regions promoted for {required.wanted_db:.0f} dB less noise"
        if not search.evaluator.goal.is_of_accuracy:
            step = (
                f"regions promoted until noise is {required.wanted_db:.1f} dB below what is allowed"
            )
        made = search.attempt(
            "promotion",
            step,
            functools.partial(_promoted, search, required),
            detail=repr(required.wanted_db),
            expected=_PROMOTION_COST * _refinement_seconds(search),
        )
        if not made:
            return


def _requirement(search: GoalSearch, attempt: int) -> Requirement:
    evaluator = search.evaluator
    why = f"the model does not reach {evaluator.goal.text} without it"
    if not evaluator.goal.is_of_accuracy:
        # What calibration samples show may be less than others do.
        found = search.confirmed or search.measured
        missing = max(0.0, -found.margin_db) if attempt else 0.0
        wanted_db = _SLACK_DB * (attempt + 1) + missing
        return Requirement(evaluator.margin, wanted_db, _LEAST_DB, why, evaluator.margin)
    best = search.best
    now: list[float] = []  # known only when something is measured: a trial may be found in a store

    def gained(errors: OutputErrors) -> float:
        if not now:
            now.append(Promoter(search.pipeline, best.built).margin(best.state))
        return evaluator.margin(errors) - now[0]

    return Requirement(gained, _STEPS_DB[attempt], _LEAST_DB, why, gained)


def _promoted(search: GoalSearch, required: Requirement) -> Candidate | None:
    best = search.best
    found = Promoter(search.pipeline, best.built, best.state).promote(required)
    if not found.is_changed:
        return None
    return search.refined(found.state, found.regions, found.where())


def try_mixed_precision(search: GoalSearch) -> None:
    """Give the layers that gain most a wider format, ever more of them."""
    base = search.best
    option = _wider(base.built)
    if option is None or base.built.config.mixed_precision is not None:
        return
    with temporary_folder() as folder:
        for share in _SHARES:
            wide = _named(option)
            made = search.attempt(
                "mixed-precision",
                f"one layer in {share} in {wide}" if share > 1 else f"all in {wide}",
                functools.partial(_mixed, search, base, option, share, folder),
                expected=_PROMOTION_COST * _refinement_seconds(search),
            )
            if not made:
                return


def _wider(state: Quantized) -> LayerOption | None:
    """Return what layers could have instead, if the target has anything wider."""
    config = state.config
    weight = config.weight if isinstance(config.weight, IntegerSpec) else None
    activation = wide_spec(state) if config.activation is not None else None
    wide = None
    is_narrow = weight is not None and weight.format.bits < 8
    if is_narrow and IntegerFormat.INT8 in state.target.weight_formats:
        wide = IntegerSpec(format=IntegerFormat.INT8, per_channel=True, method=MinMse())
    if activation is None and wide is None:
        return None
    return LayerOption(inputs=activation, outputs=activation, weight=wide)


def _named(option: LayerOption) -> str:
    specs = (option.inputs, option.weight)
    return " and ".join(spec.format_name for spec in specs if spec is not None and spec.is_integer)


def _mixed(
    search: GoalSearch, base: Candidate, option: LayerOption, share: int, folder: pathlib.Path
) -> Candidate | None:
    # Measured once: what is in the file is found again.
    config = MixedPrecision(
        options=(option,),
        metric="sqnr",
        objective="quality",
        threshold=None,
        data_size=_LAYERS_ON,
        cache=str(folder / "sensitivities.json"),
    )
    _, measured = search_by_sensitivity(search.pipeline, base.built, config, None)
    most = -(-len(measured.layers) // share)
    if not most:
        return None
    chosen = msgspec.structs.replace(config, threshold=0.0, most=most)
    built, result = search_by_sensitivity(search.pipeline, base.built, chosen, None)
    state, refinement = search.finisher.refined(built, keep=False)
    return Candidate(built, state, refinement, base.promoted, result.describe())


def _refinement_seconds(search: GoalSearch) -> float:
    return search.took.refinement


def _whole_run(search: GoalSearch) -> float:
    return search.took.whole


STRATEGIES: Mapping[str, Callable[[GoalSearch], None]] = MappingProxyType(
    {
        "calibration": try_calibration,
        "reconstruction": try_reconstruction,
        "accurate": try_accurate,
        "promotion": try_promotion,
        "mixed-precision": try_mixed_precision,
    }
)
"""All strategies in their order."""


def check_strategies(names: tuple[str, ...]) -> None:
    """Raise for a strategy that there is not."""
    for name in names:
        if name not in STRATEGIES:
            raise ConfigError(
                f"unknown strategy {name!r}{did_you_mean(name, STRATEGIES)} "
                f"(known: {', '.join(STRATEGIES)})"
            )
