"""What equalization gives: the model, and what was and was not done to it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What happened to the channels that some layers write and others read.

    Attributes:
        tensor: One tensor of the group, to know it by.
        writers: Names of the layers that write the channels; ``readers`` of those that read them.
        channels: How many there are.
        frozen: How many of them reach the upper bound of a Clip, and so keep their weights.
        capped: How many of the others would have gone further without a bound.
    """

    tensor: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    channels: int
    frozen: int
    capped: int

    @property
    def free(self) -> int:
        """How many channels could be scaled."""
        return self.channels - self.frozen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A group that was not touched, and why."""

    tensor: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Equalized:
    """A model that computes the same in float, and an account of what was done."""

    model: ir.Model
    notes: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
