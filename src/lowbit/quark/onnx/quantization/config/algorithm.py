"""Algorithms that a configuration can ask for. Each is a value; ``get_options`` says what it means.

Every field names the extra option it becomes, so nothing a user sets can get lost on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.quantization.config.spec import QLayerConfig

TargetLayerConfig: TypeAlias = QLayerConfig | dict[QLayerConfig, list[str]] | list[QLayerConfig]

LAYER_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The layers that get formats of their own, where a script does not say which."""

_FINETUNED = (*LAYER_TYPES, "InstanceNormalization", "LayerNormalization")


def _older(option: str) -> Any:
    """Return a field of earlier versions, which becomes an option only where it is given."""
    return dataclasses.field(default=None, metadata={"option": option, "older": True})


def _field(option: str, default: Any) -> Any:
    """Return a field that becomes an extra option of that name."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"option": option})
    return dataclasses.field(default=default, metadata={"option": option})


@dataclasses.dataclass
class AlgoConfig:
    """Base of all algorithms."""

    name: ClassVar[str]
    group: ClassVar[str | None] = None
    """The extra option that holds the fields as a dictionary; ``None``: each is one of its own."""
    switches: ClassVar[Mapping[str, Any]] = {}
    """Further extra options the algorithm sets."""

    def get_options(self) -> dict[str, Any]:
        """Return the extra options that mean this algorithm."""
        fields = {
            field.metadata["option"]: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.metadata.get("older") or getattr(self, field.name) is not None
        }
        inside = {self.group: {**fields, **self._fixed()}} if self.group is not None else fields
        return {**self.switches, **inside}

    def to_dict(self) -> dict[str, Any]:
        """Return the algorithm's name and what differs from its defaults, as plain values."""
        changed = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if value != default:
                changed[field.name] = plain(value)
        return {"name": self.name, **changed}

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> AlgoConfig:
        """Return the algorithm that ``to_dict`` wrote."""
        return from_dict(d)

    def _fixed(self) -> dict[str, Any]:
        return {}


@dataclasses.dataclass
class SmoothQuantConfig(AlgoConfig):
    """Move part of the range of activations into the weights of the MatMul that reads them."""

    name: ClassVar[str] = "smooth_quant"
    alpha: float = _field("SmoothAlpha", 0.5)


@dataclasses.dataclass
class CLEConfig(AlgoConfig):
    """Cross-layer equalization."""

    name: ClassVar[str] = "cle"
    cle_balance_method: str = _field("CLEBalanceMethod", "max")
    cle_steps: int = _field("CLESteps", 1)
    cle_weight_threshold: float = _field("CLEWeightThreshold", 0.5)
    cle_scale_append_bias: bool = _field("CLEScaleAppendBias", True)
    cle_scale_use_threshold: bool = _field("CLEScaleUseThreshold", True)
    cle_total_layer_diff_threshold: float = _field("CLETotalLayerDiffThreshold", 1.9e-7)


@dataclasses.dataclass
class BiasCorrectionConfig(AlgoConfig):
    """Make up in biases for what rounding weights shifts."""

    name: ClassVar[str] = "bias_correction"
    switches: ClassVar[Mapping[str, Any]] = {"BiasCorrection": True}


@dataclasses.dataclass
class GPTQConfig(AlgoConfig):
    """Round weights column by column, each making up for the error of those before."""

    name: ClassVar[str] = "gptq"
    group: ClassVar[str | None] = "GPTQParams"
    switches: ClassVar[Mapping[str, Any]] = {"UseGPTQ": True}
    bits: int = _field("Bits", 8)
    block_size: int = _field("BlockSize", 128)
    group_size: int = _field("GroupSize", -1)
    perc_damp: float = _field("PercDamp", 0.01)
    act_order: bool = _field("ActOrder", False)
    per_channel: bool = _field("PerChannel", False)
    mse: bool = _field("MSE", False)
    weight_symmetric: bool = _field("WeightSymmetric", True)


@dataclasses.dataclass
class QuarotConfig(AlgoConfig):
    """Rotate the channels of a transformer so that outliers spread."""

    name: ClassVar[str] = "quarot"
    r_matrix_dim: int = _field("RMatrixDim", 4096)
    use_random_had: bool = _field("UseRandomHad", False)
    r_config_path: str | None = _field("RConfigPath", None)


@dataclasses.dataclass
class AdaRoundConfig(AlgoConfig):
    """Choose for each weight whether it is rounded up or down, layer by layer."""

    name: ClassVar[str] = "adaround"
    group: ClassVar[str | None] = "FastFinetune"
    optim_device: str = _field("OptimDevice", "cpu")
    infer_device: str = _field("InferDevice", "cpu")
    fixed_seed: int = _field("FixedSeed", 1705472343)
    data_size: int = _field("DataSize", 1000000000)
    batch_size: int = _field("BatchSize", 1)
    num_batches: int = _field("NumBatches", 1)
    num_iterations: int = _field("NumIterations", 1000)
    learning_rate: float = _field("LearningRate", 0.1)
    early_stop: bool = _field("EarlyStop", False)
    output_index: int = _field("OutputIndex", 0)
    lr_adjust: Sequence[float] | None = _field("LRAdjust", None)
    target_op_type: list[str] = _field("TargetOpType", list(_FINETUNED))
    selective_update: bool = _field("SelectiveUpdate", False)
    update_bias: bool = _field("UpdateBias", False)
    output_qdq: bool = _field("OutputQDQ", False)
    drop_ratio: float = _field("DropRatio", 1.0)
    mem_opt_level: int = _field("MemOptLevel", 1)
    cache_dir: str | None = _field("CacheDir", None)
    log_period: float = _field("LogPeriod", 100)
    ref_model_path: str | None = _field("RefModelPath", None)
    dynamic_batch: bool = _field("DynamicBatch", False)
    parallel: bool = _field("Parallel", False)
    reg_param: float = _field("RegParam", 0.01)
    beta_range: Sequence[float] = _field("BetaRange", (20, 2))
    warm_start: float = _field("WarmStart", 0.2)
    select_max_mem_layer: bool = _field("SelectMaxMemLayer", False)
    num_workers: int = _field("NumWorkers", 1)
    pin_memory: bool = _field("PinMemory", False)
    use_gds: bool = _field("UseGDS", False)

    def _fixed(self) -> dict[str, Any]:
        return {"OptimAlgorithm": self.name}


@dataclasses.dataclass
class AdaQuantConfig(AdaRoundConfig):
    """Train the weights of each layer so that its quantized output nears the float one."""

    name: ClassVar[str] = "adaquant"
    num_iterations: int = _field("NumIterations", 3000)
    learning_rate: float = _field("LearningRate", 1e-5)


@dataclasses.dataclass
class AutoMixprecisionConfig(AlgoConfig):
    """Give each layer the cheapest of several configurations that the accuracy allows."""

    name: ClassVar[str] = "auto_mixprecision"
    group: ClassVar[str | None] = "AutoMixprecision"
    target_layer_config: TargetLayerConfig = _field("TargetLayerConfig", None)
    target_op_type: Sequence[str] = _field("TargetOpType", LAYER_TYPES)
    subgraph_json: str | Path | None = _field("SubgraphJson", None)
    include_layers: list[str] | None = _field("IncludeLayers", None)
    exclude_layers: list[str] | None = _field("ExcludeLayers", None)
    data_size: int = _field("DataSize", 0)
    metric_output_index: int = _field("MetricOutputIndex", 0)
    metric_distance_fn: Callable[..., float] | None = _field("MetricDistanceFn", None)
    metric_evaluate_fn: Callable[..., float] | None = _field("MetricEvaluateFn", None)
    metric_default: str = _field("MetricDefault", "l2")
    metric_threshold: float | None = _field("MetricThreshold", 0)
    metric_optimize_object: str = _field("MetricOptimizeObject", "speed")
    sensitivity_cache_file: str | Path | None = _field("SensitivityCacheFile", None)
    worker_num: int = _field("WorkerNum", 1)
    dual_quant_nodes: bool = _field("DualQuantNodes", False)
    no_input_qdq_shared: bool = _field("NoInputQDQShared", False)
    shared_param_mode: str = _field("SharedParamMode", "propagate")
    act_target_quant_type: Any = _older("ActTargetQuantType")
    weight_target_quant_type: Any = _older("WeightTargetQuantType")
    bias_target_quant_type: Any = _older("BiasTargetQuantType")
    target_tensors: list[str] | None = _older("TargetTensors")
    target_indices: list[int] | None = _older("TargetIndices")
    exclude_indices: list[int] | None = _older("ExcludeIndices")
    output_index: int | None = _older("OutputIndex")
    l2_target: float | None = _older("L2Target")
    top1_acc_target: float | None = _older("Top1AccTarget")
    evaluate_function: Callable[..., float] | None = _older("EvaluateFunction")
    num_target: int | None = _older("NumTarget")

    def __post_init__(self) -> None:
        older = (self.act_target_quant_type, self.weight_target_quant_type)
        if self.target_layer_config is None and not any(older):
            raise QuarkConfigError("AutoMixprecisionConfig needs a target_layer_config")
        _one_of(self, "metric_optimize_object", ("speed", "quality"))
        _one_of(self, "shared_param_mode", ("propagate", "unshare"))
        _one_of(self, "metric_default", ("l2", "kl", "cosine", "sqnr", "psnr"))


_ALL: tuple[type[AlgoConfig], ...] = (
    SmoothQuantConfig,
    CLEConfig,
    BiasCorrectionConfig,
    GPTQConfig,
    QuarotConfig,
    AdaRoundConfig,
    AdaQuantConfig,
    AutoMixprecisionConfig,
)

ALGO_NAME_TO_CLASS: dict[str, type[AlgoConfig]] = {kind.name: kind for kind in _ALL}


def from_dict(d: Mapping[str, Any]) -> AlgoConfig:
    """Return the algorithm that ``to_dict`` wrote."""
    name = d.get("name")
    kind = ALGO_NAME_TO_CLASS.get(str(name))
    if kind is None:
        near = did_you_mean(str(name), ALGO_NAME_TO_CLASS)
        raise QuarkConfigError(f"no algorithm is called {name!r}{near}")
    parts = {key: _unplain(key, value) for key, value in d.items() if key != "name"}
    known = [field.name for field in dataclasses.fields(kind)]
    for key in parts:
        if key not in known:
            raise QuarkConfigError(f"{kind.__name__} has no {key!r}{did_you_mean(key, known)}")
    return kind(**parts)


def plain(value: Any) -> Any:
    """Return a value as what JSON can hold, where it can be."""
    if isinstance(value, QLayerConfig):
        return value.to_dict()
    if isinstance(value, Mapping):
        # JSON has no keys that are objects, so a mapping from configurations becomes pairs.
        if any(isinstance(key, QLayerConfig) for key in value):
            return [[plain(key), plain(part)] for key, part in value.items()]
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _unplain(key: str, value: Any) -> Any:
    if key != "target_layer_config":
        return tuple(value) if key in ("beta_range", "lr_adjust") and value is not None else value
    if isinstance(value, Mapping):
        return QLayerConfig.from_dict(value)
    if isinstance(value, list) and value and isinstance(value[0], list):
        return {QLayerConfig.from_dict(layer): names for layer, names in value}
    return [QLayerConfig.from_dict(part) if isinstance(part, Mapping) else part for part in value]


def _one_of(config: AlgoConfig, field: str, words: tuple[str, ...]) -> None:
    value = getattr(config, field)
    if value not in words:
        raise QuarkConfigError(f"{field} is {value!r}; expected one of {', '.join(words)}")


def _algo_flag(algorithms: Sequence[AlgoConfig], kind: type[AlgoConfig]) -> bool:
    """Whether one of the algorithms is of exactly that kind."""
    return any(type(algorithm) is kind for algorithm in algorithms)
