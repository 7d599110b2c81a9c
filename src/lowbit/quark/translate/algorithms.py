"""Quark's dictionaries of parameters for fast finetuning, GPTQ and QuaRot as values of lowbit's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lowbit.config.methods import MinMse
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq
from lowbit.config.specs import IntegerSpec, Spec
from lowbit.config.transforms import RotatedStream, Rotation
from lowbit.errors import ConfigError
from lowbit.graph.session import providers_of
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.translate.options import (
    ExtraOptions,
    does,
    ignored,
    read_struct,
    rows_of,
    say_effect,
)
from lowbit.refine.devices import Device

_LOADER = "lowbit trains without a data loader"


class FastFinetune(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="pascal"
):
    """The keys of the FastFinetune dictionary, with their defaults."""

    optim_algorithm: Annotated[Literal["adaround", "adaquant"], does("which one")] = "adaround"
    num_iterations: Annotated[int, does("num_iterations")] = 1000
    batch_size: Annotated[int, does("batch_size")] = 1
    num_batches: Annotated[int, does("num_batches")] = 1
    learning_rate: Annotated[float | None, does("learning_rate")] = None
    data_size: Annotated[int | None, does("data_size")] = None
    fixed_seed: Annotated[int, does("fixed_seed")] = 1705472343
    early_stop: Annotated[bool, does("early_stop")] = False
    lr_adjust: Annotated[tuple[float, ...] | None, does("lr_adjust")] = msgspec.field(
        default=None, name="LRAdjust"
    )
    target_op_type: Annotated[tuple[str, ...], does("target_op_type")] = ()
    selective_update: Annotated[bool, does("selective_update")] = False
    update_bias: Annotated[bool, does("update_bias")] = True
    output_qdq: Annotated[bool, does("output_qdq")] = msgspec.field(default=False, name="OutputQDQ")
    drop_ratio: Annotated[float, does("drop_ratio")] = 1.0
    mem_opt_level: Annotated[Literal[0, 1, 2], does("mem_opt_level")] = 1
    cache_dir: Annotated[str | None, does("cache_dir")] = None
    log_period: Annotated[float | None, does("log_period")] = None
    output_index: Annotated[int | None, does("output_index")] = None
    ref_model_path: Annotated[str | None, does("ref_model_path")] = None
    dynamic_batch: Annotated[bool, does("dynamic_batch")] = False
    parallel: Annotated[bool, does("parallel")] = False
    reg_param: Annotated[float, does("reg_param of AdaRound")] = 0.01
    beta_range: Annotated[tuple[float, float], does("beta_range of AdaRound")] = (20.0, 2.0)
    warm_start: Annotated[float, does("warm_start of AdaRound")] = 0.2
    optim_device: Annotated[str, does("optim_device")] = "cpu"
    infer_device: Annotated[str, does("infer_device")] = "cpu"
    num_workers: Annotated[int, ignored(_LOADER, 1)] = 1
    pin_memory: Annotated[bool, ignored(_LOADER, False)] = False
    use_gds: Annotated[bool, ignored(_LOADER, False)] = msgspec.field(default=False, name="UseGDS")
    select_max_mem_layer: Annotated[bool, ignored(_LOADER, False)] = False


def read_finetune(given: Mapping[str, Any], *, lenient: bool) -> FastFinetune:
    """Return the parameters as a value; a key that is not one is an error."""
    for key, row in rows_of(FastFinetune).items():
        say_effect(row, given.get(key))
    return read_struct("FastFinetune", given, FastFinetune, lenient=lenient)


def refinement_of(tune: FastFinetune) -> AdaRound | AdaQuant:
    """Return the refinement these parameters mean."""
    common: dict[str, Any] = {
        "data_size": tune.data_size,
        "batch_size": tune.batch_size,
        "num_batches": tune.num_batches,
        "num_iterations": tune.num_iterations,
        "fixed_seed": tune.fixed_seed,
        "early_stop": tune.early_stop,
        "selective_update": tune.selective_update,
        "output_index": tune.output_index or 0,
        "lr_adjust": _lr_adjust(tune),
        "target_op_type": tune.target_op_type,
        "update_bias": tune.update_bias,
        "output_qdq": tune.output_qdq,
        "drop_ratio": tune.drop_ratio,
        "mem_opt_level": tune.mem_opt_level,
        "cache_dir": tune.cache_dir,
        "log_period": None if tune.log_period is None else max(1, int(tune.log_period)),
        "ref_model_path": tune.ref_model_path,
        "dynamic_batch": tune.dynamic_batch,
        "parallel": tune.parallel,
        "optim_device": _available(tune.optim_device, Device),
        "infer_device": _available(tune.infer_device, providers_of),
    }
    if tune.optim_algorithm == "adaround":
        return AdaRound(
            learning_rate=tune.learning_rate or 0.1,
            reg_param=tune.reg_param,
            beta_range=tune.beta_range,
            warm_start=tune.warm_start,
            **common,
        )
    return AdaQuant(learning_rate=tune.learning_rate or 1e-5, **common)


def _available(device: str, look: Callable[[str], object]) -> str:
    """Return a device, or the processor where there is no GPU: Quark falls back to it too."""
    if not device.startswith("cuda"):
        return device
    try:
        look(device)
    except ConfigError as error:
        say(f"fine-tuning runs on the processor: {error}")
        return "cpu"
    return device


def _lr_adjust(tune: FastFinetune) -> tuple[float, float] | None:
    if not tune.lr_adjust:
        return None
    if len(tune.lr_adjust) != 2:
        raise QuarkConfigError(f"LRAdjust is {tune.lr_adjust}; expected (error, learning rate)")
    return tune.lr_adjust[0], tune.lr_adjust[1]


class GptqParams(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="pascal"
):
    """The keys of the GPTQParams dictionary; without ``Bits`` weights are of the type asked for."""

    bits: int | None = None
    block_size: int = 128
    group_size: int = -1
    perc_damp: float = 0.01
    act_order: bool = False
    per_channel: bool = False
    mse: bool = msgspec.field(default=False, name="MSE")
    weight_symmetric: bool = True


_FORMATS = {4: IntegerFormat.INT4, 8: IntegerFormat.INT8}


def read_gptq(given: Mapping[str, Any], *, lenient: bool) -> GptqParams:
    """Return the parameters as a value; a key that is not one is an error."""
    return read_struct("GPTQParams", given, GptqParams, lenient=lenient)


def gptq_weight(start: Spec, params: GptqParams) -> IntegerSpec:
    """Return the spec of weights that GPTQ rounds to."""
    if not isinstance(start, IntegerSpec):
        raise QuarkConfigError(f"GPTQ rounds to integers, and weights are {start.describe()}")
    if start.power_of_two:
        raise QuarkConfigError(
            "GPTQ quantizes weights alone, with float scales: switch enable_npu_cnn off, or take "
            "AdaRound"
        )
    if params.bits not in (None, *_FORMATS):
        raise NotSupportedError(
            f"GPTQParams: Bits is {params.bits}; ONNX has integers of 4 and 8 bits for weights"
        )
    if params.group_size != -1 and params.group_size < 2:
        raise QuarkConfigError(
            f"GPTQParams: GroupSize is {params.group_size}; expected -1 (none) or at least 2"
        )
    return msgspec.structs.replace(
        start,
        format=start.format if params.bits is None else _FORMATS[params.bits],
        symmetric=params.weight_symmetric,
        per_channel=start.per_channel or params.per_channel,
        group_size=start.group_size if params.group_size == -1 else params.group_size,
        method=MinMse() if params.mse else start.method,
    )


def gptq_refinement(params: GptqParams) -> Gptq:
    """Return the refinement these parameters mean."""
    try:
        return Gptq(
            block_size=params.block_size, perc_damp=params.perc_damp, act_order=params.act_order
        )
    except ConfigError as error:
        raise QuarkConfigError(f"GPTQParams: {error}") from error


class _Pair(msgspec.Struct):
    prev_nodes: tuple[str, ...] = ()
    next_nodes: tuple[str, ...] = ()
    norm_node: str | None = None


class _Pairs(msgspec.Struct):
    R1_pairs: tuple[_Pair, ...]


def read_rotation(options: ExtraOptions) -> Rotation:
    """Return what RMatrixDim, UseRandomHad and the file at RConfigPath ask for."""
    path = options.RConfigPath
    if path is None:
        raise QuarkConfigError(
            "QuaRot needs RConfigPath (r_config_path): a JSON file with R1_pairs, each of "
            "prev_nodes, norm_node and next_nodes"
        )
    try:
        read = msgspec.json.decode(Path(path).read_bytes(), type=_Pairs)
    except (OSError, msgspec.DecodeError) as error:
        raise QuarkConfigError(f"RConfigPath {path}: {error}") from error
    streams = tuple(
        RotatedStream(producers=pair.prev_nodes, consumers=pair.next_nodes, norm=pair.norm_node)
        for pair in read.R1_pairs
    )
    size = 4096 if options.RMatrixDim is None else options.RMatrixDim
    try:
        return Rotation(streams=streams, size=size, random=bool(options.UseRandomHad))
    except ConfigError as error:
        raise QuarkConfigError(f"RConfigPath {path}: {error}") from error
