"""Everything a run depends on, in one printable value."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from lowbit.config.methods import Method, MinMse, OutputMse
from lowbit.config.mixed_precision import PrecisionSearch
from lowbit.config.refinement import Refinement
from lowbit.config.scale_search import Centering, PowerOfTwoFit, ScaleSearch, SensitivityWeighting
from lowbit.config.specs import (
    BiasSpec,
    IntegerSpec,
    Requantization,
    Rule,
    Spec,
    TensorOverride,
)
from lowbit.config.transforms import FloatTransform, Rescaling
from lowbit.errors import ConfigError

Domain: TypeAlias = Literal["auto", "ai.onnx", "com.microsoft"]
Head: TypeAlias = Literal["auto", "float", "int8"]
FixedValue: TypeAlias = bool | int | float | str | list[Any]
"""A number, or as many in lists as the input has axes."""
SizeOrName: TypeAlias = int | str | None
"""A size, or the name of a free one, or nothing for a free one without a name."""


class QuantConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a run: what is quantized to which format, and for which target.

    Attributes:
        name: The preset it started from, for the report.
        activation: Spec of activations; ``None`` quantizes weights only.
        weight: Spec of weights and other constants.
        final_weight: Spec of the weights of linear layers that make an output of the model, such as the
            head of a language model; ``None``: that of all others.
        final_headroom: Scores that are an output of the model, or that a Softmax or Sigmoid makes one of, have a
            range of at least so many times the largest seen, whatever the method: the largest decide
            between classes. A power-of-two scale leaves room by itself and holds what was seen. ``None``:
            their range is chosen as any other.
        cache: Spec of caches of keys and values, between two calls of a language model; ``None``: float.
        bias: Spec of biases; ``None`` leaves them in float.
        target: Name of a built-in target, or the path of a target file.
        rules: Exceptions by operator type, name or subgraph; the last match wins.
        include: If given, only nodes that match one of these globs are quantized.
        exclude: Nodes that match one of these globs stay in float.
        tensors: Exceptions by tensor name.
        requantize: Where a tensor has a requantization pair, for some of its consumers.
        domain: Operator domain of the Q/DQ nodes. ``auto``: the standard one where it has the
            format at the model's opset, ``com.microsoft`` otherwise.
        head: What happens after the last linear layers, such as the decoding of detections:
            ``auto`` keeps in float what the format would destroy, ``float`` all of it, ``int8`` nothing.
        rotation: Which channels are rotated before all else, so that outliers spread; ``None``: none.
        equalization: How factors move between layers before anything is quantized; ``None``: not.
        smooth_quant: How factors move from activations into the weights of MatMul and Gemm; ``None``: not.
        bias_correction: Whether biases make up for what rounding weights shifts (bias correction).
        sensitivity: How errors of activations are weighted by their effect on the outputs; ``None``: all alike.
        power_of_two_fit: How tensors are rescaled so that power-of-two scales fit them; ``None``: not.
        centering: How tensors after a Relu are centered around zero; ``None``: not.
        rescaling: The factors and offsets that these two found, or given ones; ``None``: none.
        scale_search: How scales of activations are chosen by the error of the outputs; ``None``: by the method
            of their spec alone.
        refinement: How weights are rounded better than to the nearest integer; ``None``: not.
        mixed_precision: Which layers may have other formats, found by measuring; ``None``: all have the same.
        keep_only_if_better: Whether equalization, SmoothQuant and ``centering`` are kept only if they lower the error on
            samples held out of calibration, and bias correction, ``sensitivity`` and ``power_of_two_fit`` unless they
            raise it.
        steps_decided: Whether an earlier run decided which of these help, as in ``Result.config``: they are done
            on the same samples, and kept.
        fix_inputs: Inputs that become constants, with their values; the quantized model has them no more.
        input_shapes: Shapes of inputs, instead of those in the file.
        skip_rewrites: Names of graph rewrites of the target to skip (``lowbit.transforms.rewrites``).
        casts: Whether 16-bit floats are written as pairs of Cast, instead of the operators AMD's
            tools know by name.
        half_weights: Whether constants in 16-bit floats are stored as such, at half the size.
    """

    name: str = "custom"
    activation: Spec | None
    weight: Spec | None
    final_weight: Spec | None = None
    final_headroom: float | None = None
    cache: Spec | None = None
    bias: BiasSpec | None = None
    target: str = "onnxruntime"
    rules: tuple[Rule, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tensors: tuple[TensorOverride, ...] = ()
    requantize: tuple[Requantization, ...] = ()
    domain: Domain = "auto"
    head: Head = "auto"
    rotation: FloatTransform | None = None
    equalization: FloatTransform | None = None
    smooth_quant: FloatTransform | None = None
    bias_correction: bool = False
    keep_only_if_better: bool = False
    steps_decided: bool = False
    sensitivity: SensitivityWeighting | None = None
    power_of_two_fit: PowerOfTwoFit | None = None
    centering: Centering | None = None
    rescaling: Rescaling | None = None
    scale_search: ScaleSearch | None = None
    refinement: Refinement | None = None
    mixed_precision: PrecisionSearch | None = None
    fix_inputs: dict[str, FixedValue] = {}
    input_shapes: dict[str, tuple[SizeOrName, ...]] = {}
    skip_rewrites: tuple[str, ...] = ()
    casts: bool = False
    half_weights: bool = False

    @property
    def overrides(self) -> tuple[TensorOverride, ...]:
        """Exceptions by tensor name, with the ranges that rescaled tensors have."""
        if self.rescaling is None:
            return self.tensors
        ranges = self.rescaling.ranges.items()
        return (
            *(TensorOverride(tensor=name, range=each, optional=True) for name, each in ranges),
            *self.tensors,
        )

    @property
    def needs_data(self) -> str | None:
        """The step that cannot be done without samples, or ``None`` if all can."""
        specs = (self.activation, *(rule.activation for rule in self.rules))
        if any(spec is not None and spec.calibration is not None for spec in specs):
            return "the scales of activations are calibrated"
        if self.cache is not None:
            return "the scales of caches are calibrated"
        searches = (
            self.mixed_precision,
            self.sensitivity,
            self.power_of_two_fit,
            self.centering,
            self.scale_search,
        )
        if self.keep_only_if_better or any(each is not None for each in searches):
            return "what helps is measured"
        transforms = (self.rotation, self.equalization, self.smooth_quant)
        if any(each is not None and each.reads_data for each in transforms):
            return "equalization and smoothing measure activations"
        if self.refinement is not None and not self.refinement.is_optional:
            return f"weights are refined ({type(self.refinement).__name__})"
        return None

    def skip_bias_correction(self) -> QuantConfig:
        """Return the same configuration without bias correction.

        Weight scales of least squared error become those of least output error, in which the shift
        of means counts that nothing corrects any more. Powers of two are too few to choose from
        for it to matter.
        """
        weight = self.weight
        fine = isinstance(weight, IntegerSpec) and not weight.power_of_two
        if weight is not None and fine and weight.calibration == MinMse():
            weight = weight.with_method(OutputMse())
        return msgspec.structs.replace(self, bias_correction=False, weight=weight)

    def with_group_size(self, group_size: int) -> QuantConfig:
        """Return the same configuration with another number of weights per scale."""
        weight = self.weight
        is_dynamic = self.activation is not None and self.activation.is_dynamic
        if not isinstance(weight, IntegerSpec) or is_dynamic:
            what = "multiplied as int8" if weight and weight.is_integer else "not in integers"
            raise ConfigError(
                f"a group size of {group_size} is given, but the weights of {self.name} are {what}; "
                "take W8 or W4"
            )
        weight = msgspec.structs.replace(weight, group_size=group_size)
        return msgspec.structs.replace(self, weight=weight)

    def with_method(self, method: Method) -> QuantConfig:
        """Return the same configuration with activations calibrated by ``method``."""
        if self.activation is None:
            return self
        return msgspec.structs.replace(self, activation=self.activation.with_method(method))
