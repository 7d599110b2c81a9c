"""Texts that a language model writes itself: samples to reconstruct its layers on where none are given.

What a model computes on its own texts is near to what it computes on those it was trained on; what it
computes on random tokens is not. A text begins with a random token; each next one is drawn from the model's own
probabilities (as in LLM-QAT, arXiv:2305.17888).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.data.dataset import Data, Shipped
from lowbit.data.inputs import InputInfo
from lowbit.data.text import Role, empty_cache, role_of
from lowbit.errors import DataError, ModelError
from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Session, model_inputs, session
from lowbit.ops.families import LAYOUT
from lowbit.ops.weights import is_embedding

_TEXTS, _LENGTH = 24, 48
# Weights, in numbers: every token is a pass over all before it, which of more would take many minutes.
_LARGEST = 1 << 27
_SEED = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GeneratedTexts(Shipped):
    """Feeds of what a model wrote."""

    def describe(self) -> str:
        """Return how many there are, and whose."""
        return f"{len(self.pairs)} texts that the model wrote itself"


@dataclasses.dataclass(frozen=True, slots=True)
class _Writer:
    """A language model: what its inputs are for, and where its logits come from."""

    inputs: Sequence[InputInfo]
    roles: Mapping[str, Role]
    logits: str
    vocabulary: int

    def feed(self, tokens: NDArray[np.int64]) -> dict[str, Array]:
        """Return whole sequences as a feed."""
        made = {
            "tokens": tokens,
            "mask": np.ones_like(tokens),
            "kinds": np.zeros_like(tokens),
            "positions": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape),
        }
        found = {}
        for info in self.inputs:
            role = self.roles[info.name]
            if role == "cache":
                found[info.name] = np.repeat(empty_cache(info), len(tokens), axis=0)
            else:
                found[info.name] = np.ascontiguousarray(made[role], info.dtype)
        return found

    def logits_of(self, running: Session, tokens: NDArray[np.int64]) -> Array:
        """Return the logits at every position."""
        return running.run([self.logits], self.feed(tokens))[0]


def generate_texts(model: ir.Model) -> Data | None:
    """Return texts that a language model wrote; nothing of a model that writes none.

    One that does takes tokens of any number and gives, at each, logits of the same vocabulary that do not
    depend on later tokens.
    """
    writer = _find_writer(model)
    if writer is None:
        return None
    try:
        with session(model, optimize="all", name="the float model") as running:
            tokens = _written(writer, running)
    except ModelError:
        return None  # it takes no sequences of this length, or no caches that are empty
    if tokens is None:
        return None
    pairs = tuple((f"text {i}", writer.feed(tokens[i : i + 1])) for i in range(len(tokens)))
    return Data(GeneratedTexts(pairs), tuple(writer.inputs))


def _find_writer(model: ir.Model) -> _Writer | None:
    weights = model.graph.initializers.values()
    if sum(math.prod(constant_shape(value) or (0,)) for value in weights) > _LARGEST:
        return None
    try:
        inputs = model_inputs(model)
        roles = {info.name: role_of(info) for info in inputs}
    except (DataError, ModelError):
        return None
    tokens = [info for info in inputs if roles[info.name] == "tokens"]
    free = not any(isinstance(size, int) for info in tokens for size in info.shape or (1,))
    shape = tokens[0].shape if len(tokens) == 1 else None
    if not free or shape is None or len(shape) != 2:
        return None
    vocabulary = _vocabulary(model, tokens[0].name)
    logits = [value for value in model.graph.outputs if _has_classes(value, vocabulary)]
    if vocabulary is None or not logits:
        return None
    return _Writer(inputs, roles, tensor_name(logits[0]), vocabulary)


def _vocabulary(model: ir.Model, tokens: str) -> int | None:
    """Return how many rows the table has that tokens pick from."""
    for node in model.graph:
        if is_embedding(node) and _origin(node.inputs[1]) == tokens:
            return (constant_shape(node.inputs[0]) or (0,))[0]
    return None


def _origin(value: ir.Value | None) -> str:
    """Return what a value is, casts and shapes aside."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in LAYOUT:
            break
        value = node.inputs[0]
    return "" if value is None else str(value.name)


def _has_classes(value: ir.Value, count: int | None) -> bool:
    shape = value.shape
    return shape is not None and len(shape) == 3 and (shape[-1] == count or _is_free(shape[-1]))


def _is_free(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int)


def _written(writer: _Writer, running: Session) -> NDArray[np.int64] | None:
    random = np.random.default_rng(_SEED)
    tokens = random.integers(0, writer.vocabulary, (_TEXTS, 1))
    if not _predicts_tokens(writer, running, random):
        return None
    for _ in range(_LENGTH - 1):
        last = writer.logits_of(running, tokens)[:, -1].astype(np.float64)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        drawn = np.argmax(last + random.gumbel(size=last.shape), axis=1)
        tokens = np.concatenate([tokens, drawn[:, None]], axis=1)
    return tokens


def _predicts_tokens(writer: _Writer, running: Session, random: np.random.Generator) -> bool:
    """Whether logits are of the vocabulary and the same whatever tokens come later."""
    tokens = random.integers(0, writer.vocabulary, (2, 8))
    tokens[1, :4] = tokens[0, :4]
    logits = writer.logits_of(running, tokens)
    if logits.shape != (2, 8, writer.vocabulary):
        return False
    spread = float(np.abs(logits).max())
    return bool(np.allclose(logits[0, :4], logits[1, :4], atol=1e-4 * spread))
