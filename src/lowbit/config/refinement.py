"""Refinement once the scales are fixed, as values; ``lowbit.refine`` does the work.

A layer is refined together with its activation. Layers come in the order of the graph, and each sees
the inputs that the refined ones before it give. Scales, zero points and the structure stay.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from lowbit.config.extensible import Extensible
from lowbit.errors import ConfigError


class Refinement(Extensible):
    """Base of all refinements; one of your own returns from ``algorithm`` what does the work.

    Every kind has the fields ``data_size`` (how many calibration samples to use; all if ``None``) and
    ``infer_device`` (where onnxruntime runs).
    """

    __slots__ = ()

    is_optional: ClassVar[bool] = False
    """Whether a run without data skips it."""

    data_size: int | None
    infer_device: str

    def algorithm(self) -> Any:
        """Return a ``lowbit.refine.algorithm.Algorithm``; ``None`` for the package's own."""
        return None


class LayerReconstruction(
    Refinement,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="reconstruction",
):
    """Round weights so that each layer's output is nearest to the float one, in closed form.

    Coordinate descent on the second moments of the quantized inputs, the float layer's output as
    target. It costs about as much as calibration.

    Attributes:
        data_size: How many calibration samples to use; if not given 32, or 24 of more than a megabyte,
            spread over all of them; more where layers show few positions of each.
        positions: How many positions of each sample a layer's moments are taken at; fewer where
            there are few weights an output, more where there are thousands, or few large samples.
        ridge: How strongly the weights are held to the float ones.
        sweeps: How often the descent goes over all weights of a layer; 0 leaves the rounding and
            corrects biases only, in sequence, from the data.
        held_out: The share of the samples that decides whether a layer's result is kept. With
            fewer than 32 samples, or 24 of more than a megabyte, none is held out, and those it was
            solved on decide.
        infer_device: Where onnxruntime runs: ``cpu``, or ``cuda:0`` (NVIDIA and AMD).
        optim_device: Where the descent runs; other than ``cpu`` needs PyTorch.
    """

    is_optional: ClassVar[bool] = True

    data_size: int | None = None
    positions: int = 64
    ridge: float = 0.2
    sweeps: int = 4
    held_out: float = 0.125
    infer_device: str = "cpu"
    optim_device: str = "cpu"

    def __post_init__(self) -> None:
        _at_least("reconstruction", 1, data_size=self.data_size, positions=self.positions)
        _at_least("reconstruction", 0, sweeps=self.sweeps)
        _at_least("reconstruction", 0, ridge=self.ridge)
        _within("reconstruction", 0.0, 0.5, held_out=self.held_out)


class Gptq(
    Refinement,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="gptq",
):
    """Round weights input by input; the remaining ones compensate for the error so far (arXiv:2210.17323).

    The weights' spec says how many bits they have, whether scales are per channel or per group,
    whether they are symmetric, and how they are found.

    Attributes:
        block_size: How many inputs are rounded before the others are updated; it changes the time
            taken, not the result.
        perc_damp: What is added to the second moment of each input, as a share of their mean.
        act_order: Whether inputs with the largest second moments go first.
        data_size: How many calibration samples to use; all of them if not given.
        positions: How many positions of each sample a layer's moments are taken at; fewer where
            there are few weights an output, more where there are thousands.
        held_out: The share of the samples that decides whether a layer's result is kept. With
            fewer than 32 samples none is held out, and those it was solved on decide.
        parallel: Solve layers independently of each other, several at a time: each from the inputs that
            it has while no other is refined.
        infer_device: Where onnxruntime runs: ``cpu``, or ``cuda:0`` (NVIDIA and AMD).
    """

    block_size: int = 128
    perc_damp: float = 0.01
    act_order: bool = False
    data_size: int | None = None
    positions: int = 128
    held_out: float = 0.125
    parallel: bool = False
    infer_device: str = "cpu"

    def __post_init__(self) -> None:
        _at_least("gptq", 1, block_size=self.block_size)
        _at_least("gptq", 1, data_size=self.data_size, positions=self.positions)
        _within("gptq", 0.0, 0.5, held_out=self.held_out)
        if self.perc_damp <= 0:
            raise ConfigError(f"gptq.perc_damp is {self.perc_damp:g}; it must be above 0")


class _GradientTuning(
    Refinement, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Arguments of both gradient methods.

    Attributes:
        data_size: How many samples to tune on; all of them if not given.
        batch_size: Samples in a mini-batch.
        num_batches: Mini-batches whose gradients make one step.
        num_iterations: Steps for each layer.
        learning_rate: Adam's.
        fixed_seed: Of the order of samples.
        early_stop: Stop a layer when a tenth of the steps brought no gain.
        selective_update: Undo a layer if the model's output is no nearer to float after it.
        output_index: Which output of the model ``selective_update`` looks at.
        lr_adjust: (error, rate): layers that start above this error take the other rate.
        target_op_type: Operators that are tuned; all that have weights if none is given.
        update_bias: Tune biases as well.
        output_qdq: Quantize a layer's output before comparing it.
        drop_ratio: How likely an input value is the quantized model's rather than the float one's.
        mem_opt_level: 0 keeps all layers' data in memory, 1 that of one layer as far as it is small,
            2 that of one layer on disk, read a batch at a time.
        cache_dir: Where data is kept that is not in memory; a temporary directory if not given.
        log_period: Steps between two reports of progress; a tenth of all if not given.
        ref_model_path: A float model to follow instead of the one that is quantized.
        dynamic_batch: Run onnxruntime on ``batch_size`` samples at once.
        parallel: Tune layers independently of each other, several at a time.
        optim_device: Where tuning runs: ``cpu``, or ``cuda:0`` (NVIDIA and AMD), with PyTorch.
        infer_device: Where onnxruntime runs: ``cpu``, or ``cuda:0`` (NVIDIA and AMD).
        held_out: The share of the samples that decides whether a layer's result is kept. With
            fewer than 32 samples none is held out, and those it was tuned on decide.
    """

    data_size: int | None = None
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int
    learning_rate: float
    fixed_seed: int = 1705472343
    early_stop: bool = False
    selective_update: bool = False
    output_index: int = 0
    lr_adjust: tuple[float, float] | None = None
    target_op_type: tuple[str, ...] = ()
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: Literal[0, 1, 2] = 1
    cache_dir: str | None = None
    log_period: int | None = None
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    optim_device: str = "cpu"
    infer_device: str = "cpu"
    held_out: float = 0.125

    def __post_init__(self) -> None:
        name = str(self.__struct_config__.tag)
        for field in ("data_size", "batch_size", "num_batches", "num_iterations", "log_period"):
            _at_least(name, 1, **{field: getattr(self, field)})
        _at_least(name, 0, output_index=self.output_index, fixed_seed=self.fixed_seed)
        _within(name, 0.0, 1.0, drop_ratio=self.drop_ratio)
        _within(name, 0.0, 0.5, held_out=self.held_out)
        if self.learning_rate <= 0:
            raise ConfigError(f"{name}.learning_rate is {self.learning_rate:g}; it must be above 0")


class AdaRound(_GradientTuning, frozen=True, kw_only=True, tag="adaround"):
    """Learn for each weight whether it is rounded up or down (arXiv:2004.10568), by Adam.

    Attributes:
        reg_param: Weight of the loss that drives every rounding to one side.
        beta_range: That loss's exponent, first and last.
        warm_start: The share of steps before that loss sets in.
    """

    num_iterations: int = 1000
    learning_rate: float = 0.1
    reg_param: float = 0.01
    beta_range: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("adaround", 0, reg_param=self.reg_param)
        _within("adaround", 0.0, 1.0, warm_start=self.warm_start)
        if min(self.beta_range) <= 0:
            raise ConfigError(f"adaround.beta_range is {self.beta_range}; both must be above 0")


class AdaQuant(_GradientTuning, frozen=True, kw_only=True, tag="adaquant"):
    """Tune the weights through their rounding, straight-through (arXiv:2006.10518), by Adam."""

    num_iterations: int = 3000
    learning_rate: float = 1e-5


GradientTuning: TypeAlias = AdaRound | AdaQuant


def _at_least(name: str, least: float, **values: float | None) -> None:
    for field, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{name}.{field} is {value}; it must be at least {least}")


def _within(name: str, low: float, high: float, **values: float) -> None:
    for field, value in values.items():
        if not low <= value <= high:
            raise ConfigError(f"{name}.{field} is {value:g}; it must be from {low:g} to {high:g}")
