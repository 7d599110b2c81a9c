"""From options to a configuration: preset, then file, then what single options change."""

from __future__ import annotations

import argparse
import dataclasses

import msgspec

from lowbit.config import DEFAULT_PRESET
from lowbit.config.config import QuantConfig
from lowbit.config.files import read_config
from lowbit.config.methods import BY_NAME, FOR_WEIGHTS, Method, Percentile
from lowbit.config.presets import INT8_CACHE, PRESETS, find_preset
from lowbit.config.refinement import LayerReconstruction, Refinement
from lowbit.config.specs import Rule
from lowbit.data import Preprocessing, Tokenization, find_preprocessing
from lowbit.errors import ConfigError, did_you_mean
from lowbit.planning.plan import Plan
from lowbit.targets.builtin import find_target

_FIELDS = ("mean", "std", "scale", "resize", "crop", "layout", "channel_order")


def make_preprocessing(args: argparse.Namespace) -> Preprocessing | Tokenization | None:
    """Return what is done to images or texts, or ``None`` when no option says anything about it."""
    if getattr(args, "tokenizer", None) is not None:
        return Tokenization(tokenizer=args.tokenizer, max_length=args.max_length)
    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if args.preprocess is None and not given:
        return None
    start = Preprocessing() if args.preprocess is None else find_preprocessing(args.preprocess)
    # A size of which both parts are given is meant as it is, not as a proportion.
    if "resize" in given and ("crop" in given or start.letterbox):
        given["proportional"] = False
    return dataclasses.replace(start, **given)


_DECIDE_THE_PLAN = (
    ("calibration", "--calibration"),
    ("percentile", "--percentile"),
    ("weights", "--weights"),
    ("group_size", "--group-size"),
    ("include", "--include"),
    ("exclude", "--exclude"),
    ("exclude_op", "--exclude-op"),
    ("head", "--head"),
    ("cache", "--cache"),
)


def make_config(args: argparse.Namespace, plan: Plan | None = None) -> QuantConfig:
    """Return the configuration that the options ask for.

    Options that would change a plan that is already made are refused.
    """
    if plan is not None:
        _refuse_decisions(args)
    config = _change(_start(args, plan), args)
    _check_target(config, args, plan)
    return config


def _start(args: argparse.Namespace, plan: Plan | None) -> QuantConfig:
    if args.config is not None:
        return read_config(args.config, args.preset)
    if args.preset is not None or plan is None:
        return find_preset(args.preset or DEFAULT_PRESET)
    if plan.preset not in PRESETS:
        raise ConfigError(
            f"the plan was made from {plan.preset!r}, which is no preset; "
            "give the --config or --preset it was made with"
        )
    return find_preset(plan.preset)


def _change(config: QuantConfig, args: argparse.Namespace) -> QuantConfig:
    if getattr(args, "no_bias_correction", False):
        config = config.skip_bias_correction()
    config = _change_methods(config, args)
    return msgspec.structs.replace(
        config,
        target=args.target or config.target,
        rules=(*config.rules, *(Rule(op_type=word, exclude=True) for word in args.exclude_op)),
        include=(*config.include, *args.include),
        exclude=(*config.exclude, *args.exclude),
        head=args.head or config.head,
        cache=INT8_CACHE if args.cache else config.cache,
        fix_inputs={**config.fix_inputs, **dict(args.fix_input)},
        input_shapes={**config.input_shapes, **dict(args.input_shape)},
        skip_rewrites=(*config.skip_rewrites, *args.skip_rewrite),
        domain=getattr(args, "domain", None) or config.domain,
        equalization=None if getattr(args, "no_equalization", False) else config.equalization,
        smooth_quant=None if getattr(args, "no_smooth_quant", False) else config.smooth_quant,
        sensitivity=None if getattr(args, "no_sensitivity", False) else config.sensitivity,
        power_of_two_fit=None
        if getattr(args, "no_power_of_two_fit", False)
        else config.power_of_two_fit,
        centering=None if getattr(args, "no_centering", False) else config.centering,
        keep_only_if_better=config.keep_only_if_better
        and not getattr(args, "keep_all_steps", False),
        refinement=_refinement(config, args),
    )


def _refinement(config: QuantConfig, args: argparse.Namespace) -> Refinement | None:
    skipped = getattr(args, "no_reconstruction", False)
    reconstructs = isinstance(config.refinement, LayerReconstruction)
    return None if skipped and reconstructs else config.refinement


def _change_methods(config: QuantConfig, args: argparse.Namespace) -> QuantConfig:
    method = _method(args)
    if method is not None:
        if config.activation is None:
            raise ConfigError("--calibration is given, but only weights are quantized")
        config = config.with_method(method)
    if args.weights is not None:
        if config.weight is None:
            raise ConfigError("--weights is given, but no weights are quantized")
        weight = msgspec.structs.replace(config.weight, method=FOR_WEIGHTS[args.weights]())
        config = msgspec.structs.replace(config, weight=weight)
    if args.group_size is not None:
        config = config.with_group_size(args.group_size)
    return config


def _method(args: argparse.Namespace) -> Method | None:
    if args.percentile is not None:
        if args.calibration not in (None, "percentile"):
            raise ConfigError(
                f"--percentile {args.percentile:g} goes with --calibration percentile, "
                f"not {args.calibration}"
            )
        return Percentile(percentile=args.percentile)
    if args.calibration is None:
        return None
    return BY_NAME[args.calibration]()


def _refuse_decisions(args: argparse.Namespace) -> None:
    for name, option in _DECIDE_THE_PLAN:
        if getattr(args, name):
            raise ConfigError(
                f"{option} decides the plan, but --plan gives one already made: give one of "
                "the two, or edit the plan's file"
            )


def _check_target(config: QuantConfig, args: argparse.Namespace, plan: Plan | None) -> None:
    target = find_target(config.target)
    if plan is not None and plan.target != target.name:
        raise ConfigError(
            f"the plan was made for target {plan.target}, but {config.name} is for {target.name}; "
            f"give the --preset or --target it was made with"
        )
    rewrites = (*target.transforms, *target.arithmetic)
    for word in args.skip_rewrite:
        if word not in rewrites:
            known = ", ".join(rewrites) or "none at all"
            raise ConfigError(
                f"target {target.name} has no rewrite {word!r} to skip"
                f"{did_you_mean(word, rewrites)} (it has {known})"
            )
