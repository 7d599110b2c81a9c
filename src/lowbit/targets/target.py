"""The Target type, the built-in targets by name, and a user's own from a file.

A target is data: which operators it takes in which formats, which pairs it fuses, which tensors
must share parameters, how its fixed-point datapath limits scales, and which graph rewrites it
needs. ``lowbit plan --target`` reads it and says what would fall off the accelerator.
"""

from __future__ import annotations

import pathlib
from typing import Literal, TypeAlias

import msgspec

from lowbit.config.extensible import decode_json, tag_of
from lowbit.config.specs import Spec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat, IntegerFormat

AlignRule: TypeAlias = Literal["merged", "lowest", "output", "input"]
"""How one set of parameters is found for tensors that must agree.

``merged``: the best for the data of all of them. ``lowest``: the coarsest of their own
power-of-two scales. ``output`` / ``input``: the output's (input's) own, copied to the others.
"""

PackedOperator: TypeAlias = Literal["MatMulNBits", "GatherBlockQuantized", "DynamicQuantizeLSTM"]
DataMovement: TypeAlias = Literal["beside_quantized", "after_quantized", "always"]
PairOrder: TypeAlias = Literal["through_taps", "within_taps"]
FloatPart: TypeAlias = Literal["masks", "blocks"]
BlockAxes: TypeAlias = Literal["contracted", "channels"]


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common settings of the value types below."""


class FusedPair(_Data, frozen=True, kw_only=True):
    """Operators that run as one: no Q/DQ between a producer and its only consumer."""

    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    clips: tuple[tuple[float, float], ...] | None = None
    """Bounds a Clip must have; ``None``: any."""


class Alignment(_Data, frozen=True, kw_only=True):
    """Operators whose inputs and outputs must have equal parameters."""

    operators: tuple[str, ...]
    rule: AlignRule


class OperatorFormats(_Data, frozen=True, kw_only=True):
    """Operators that take other formats than the rest; ``None``: the same for this role."""

    operators: tuple[str, ...]
    activation: tuple[IntegerFormat, ...] | None = None
    weight: tuple[IntegerFormat, ...] | None = None


class PairedSums(_Data, frozen=True, kw_only=True):
    """Kernels that add products two by two in 16 bits, and saturate there.

    So do x86 processors without VNNI. What meets follows from the weight's geometry: products are
    added in the order of taps and, for each tap, of input channels. ``pairs`` says which two are one
    pair: those next to each other ``through_taps``, or ``within_taps``, where an odd channel stays alone.
    Depthwise layers are computed otherwise, and exactly.
    """

    operators: tuple[str, ...]
    activation: tuple[IntegerFormat, ...]
    weight: tuple[IntegerFormat, ...]
    pairs: tuple[PairOrder, ...]


class ShiftLimits(_Data, frozen=True, kw_only=True):
    """Bounds on sums and differences of fraction bits, set by the width of shifters.

    With scales of ``2**-f``, f fraction bits: reading two addends shifts one of them by the
    difference of fraction bits, writing a result shifts the accumulator, and so on.
    ``accumulating`` operators are those whose products and biases are shifted. Where bounds contradict
    what must be equal, fraction bits are pulled together, or the bound wins at its own tensor and
    the others ``keep`` theirs.
    """

    accumulating: tuple[str, ...] = ("Conv", "Gemm")
    read: int = 7
    write_add: tuple[int, int] = (-7, 25)
    write_mul: tuple[int, int] = (0, 32)
    cut: tuple[int, int] = (0, 16)
    bias_high: int = 15
    bias_width: int = 24
    hardsigmoid_input: tuple[int, int] = (0, 15)
    hardsigmoid_output_low: int = 7
    hardsigmoid_shift: tuple[int, int] = (0, 31)
    swish: tuple[int, int] = (0, 15)
    contradictions: Literal["pull", "keep"] = "pull"


class Target(_Data, frozen=True, kw_only=True):
    """A device or runtime, as planning, scales and graph rewrites need to know it.

    Attributes:
        operators: Operator types it runs quantized.
        every_operator: Whether it also runs operators that no rule is known for, on the numbers of
            all their float inputs and outputs.
        activation_formats: Formats of activations; ``weight_formats`` likewise for weights.
        float_formats: Float formats of 16 or 8 bits of both.
        format_kinds: Other kinds of formats of both, by their word in a configuration: ``bfp`` and ``mx``.
        dynamic: Operators it computes in integers with a scale that is found when the model runs.
        dequantizes: Whether LSTM, GRU, RNN and Attention, which compute in float, may have integer weights.
        packed: Operators of com.microsoft that read packed weights instead of a DequantizeLinear.
        formats: Operators that take other formats; of two entries for one operator the last holds.
        power_of_two: Whether every scale must be a power of two.
        per_channel: Whether weights may have a scale per channel.
        symmetric: Whether every zero point must be zero.
        integer_bias: Whether biases are integers; otherwise they stay in float.
        shares: Operators whose output uses the very parameters of its input.
        block_axes: How the axis of blocks is chosen (``lowbit.planning.block_axes``).
        data_movement: Where data movement is quantized: ``beside_quantized`` next to something
            quantized, ``after_quantized`` where what it reads is, or ``always``.
        float_parts: What is left in float wherever it is found: ``masks``, all that lies between an
            attention mask and its Softmax; ``blocks``, what attention networks compute between
            their linear layers, and normalizations and GELUs that are written out.
        float_outputs: Operators that compute in integers and write floats where that is a final output.
        align: Further operators whose tensors must agree, in the order they are applied.
        fuse: Pairs with no Q/DQ between.
        limits: Bounds of a fixed-point datapath, if it has one.
        saturation: Kernels that saturate, if it has any: weights are kept from it.
        transforms: Rewrites done before calibration, by name (``lowbit.transforms.rewrites``).
        arithmetic: Rewrites to the device's own arithmetic, by name.
        calibrate_arithmetic: Whether calibration sees the device's arithmetic or the float one.
        calibrate_optimized: Whether calibration runs the graph with onnxruntime's optimizations.
        calibrate_padding: Whether what is computed at the padding of sequences counts in calibration.
        softmax_range: Range given to Softmax outputs whatever the data says.
        fast_formats: Formats of activations that its fast kernels read; none: it does not matter.
        fast_product_formats: Further formats that its matrix products read as fast.
        fallback: Where a node it cannot run goes, for the report.
    """

    name: str
    description: str = ""
    operators: tuple[str, ...]
    every_operator: bool = False
    activation_formats: tuple[IntegerFormat, ...]
    weight_formats: tuple[IntegerFormat, ...]
    float_formats: tuple[FloatFormat, ...] = ()
    format_kinds: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    dequantizes: bool = False
    packed: tuple[PackedOperator, ...] = ()
    formats: tuple[OperatorFormats, ...] = ()
    block_axes: BlockAxes = "contracted"
    power_of_two: bool = False
    per_channel: bool = True
    symmetric: bool = False
    integer_bias: bool = True
    shares: tuple[str, ...] = ()
    data_movement: DataMovement = "beside_quantized"
    float_parts: tuple[FloatPart, ...] = ("masks", "blocks")
    float_outputs: tuple[str, ...] = ()
    align: tuple[Alignment, ...] = ()
    fuse: tuple[FusedPair, ...] = ()
    limits: ShiftLimits | None = None
    saturation: PairedSums | None = None
    transforms: tuple[str, ...] = ()
    arithmetic: tuple[str, ...] = ()
    calibrate_arithmetic: bool = True
    calibrate_optimized: bool = True
    calibrate_padding: bool = False
    softmax_range: tuple[float, float] | None = None
    fast_formats: tuple[IntegerFormat, ...] = ()
    fast_product_formats: tuple[IntegerFormat, ...] = ()
    fallback: str = "the CPU"

    def formats_of(
        self, operator: str
    ) -> tuple[tuple[IntegerFormat, ...], tuple[IntegerFormat, ...]]:
        """Return the formats an operator takes for activations and for weights."""
        activation, weight = self.activation_formats, self.weight_formats
        for entry in self.formats:
            if operator in entry.operators:
                activation = entry.activation or activation
                weight = entry.weight or weight
        return activation, weight

    def takes(self, spec: Spec, formats: tuple[IntegerFormat, ...]) -> bool:
        """Whether a tensor may have a spec, ``formats`` being the integers of its role."""
        if spec.is_dynamic:
            return bool(self.dynamic)
        return not {spec.format_name, tag_of(type(spec))}.isdisjoint(self.words_of(formats))

    def words_of(self, formats: tuple[IntegerFormat, ...]) -> tuple[str, ...]:
        """Return all formats of a role by their words, ``formats`` being its integers."""
        return (*(f.value for f in (*formats, *self.float_formats)), *self.format_kinds)


def read_target(path: pathlib.Path) -> Target:
    """Return the target described in a JSON file (see docs/targets.md)."""
    try:
        return decode_json(path.read_bytes(), Target)
    except OSError as error:
        raise ConfigError(f"cannot read the target file {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"target file {path}: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"target file {path} is not JSON: {error}") from error
