"""Checkpoints: finished layers in a folder or a store, so that a killed run continues where it was.

What is kept of a layer is named after all that its result depends on: model, plan, parameters, weights,
biases, configuration, data, lowbit's version, and the results of the layers before it. So nothing that is
found is ever wrong, and the layers of several runs may lie in one place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.refinement import Refinement
from lowbit.errors import OutputError
from lowbit.graph.identity import hash_model
from lowbit.graph.session import Array
from lowbit.refine.layers import LayerResult, RefinedLayer
from lowbit.state import Quantized
from lowbit.store import Store, content_key
from lowbit.version import __version__

_ENDING, _UNFINISHED = ".layer", ".unfinished"
_OWN = re.compile(rf"\d{{5}}-[0-9a-f]{{64}}{re.escape(_ENDING)}({re.escape(_UNFINISHED)})?")
_DIGEST = hashlib.sha256().digest_size


class _Stored(msgspec.Struct, array_like=True):
    """An array as bytes; types of ml_dtypes keep their names, which ``.npy`` files forget."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _Record(msgspec.Struct, array_like=True):
    """The checkpoint file of a layer."""

    stored: _Stored
    bias: _Stored | None
    before: float
    after: float
    kept: bool


class _Place(Protocol):
    """Where layers are kept; what is there is complete or not at all."""

    def read(self, name: str) -> bytes | None:
        """Return what was kept under a name, if it is there and whole."""

    def write(self, name: str, content: bytes) -> None:
        """Keep something."""

    def has(self, name: str) -> bool:
        """Whether anything is there, whole or damaged."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Folder:
    """A folder, in which files of others are left alone."""

    path: pathlib.Path

    def read(self, name: str) -> bytes | None:
        try:
            data = (self.path / name).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST], data[_DIGEST:]
        return content if hashlib.sha256(content).digest() == digest else None

    def write(self, name: str, content: bytes) -> None:
        unfinished = self.path / (name + _UNFINISHED)
        try:
            unfinished.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(unfinished, self.path / name)
        except OSError as error:
            raise OutputError(
                f"cannot keep a finished layer in {self.path}: {error.strerror or error}"
            ) from error

    def has(self, name: str) -> bool:
        return (self.path / name).exists()


@dataclasses.dataclass(frozen=True, slots=True)
class _InStore:
    """A store of results, which sees to damage by itself."""

    store: Store

    def read(self, name: str) -> bytes | None:
        return self.store.get(content_key("layer", name))

    def write(self, name: str, content: bytes) -> None:
        self.store.put(content_key("layer", name), content)

    def has(self, name: str) -> bool:
        return self.read(name) is not None


@dataclasses.dataclass(slots=True)
class Checkpoint:
    """The results of one run, in order; each is there complete or not at all.

    ``foreign``: layers were there before; ``resumed`` is how many of them could be used. ``damaged`` are
    the names of files that could not be used, and were solved again.
    """

    place: _Place
    where: str
    resume: bool
    foreign: bool = False
    resumed: int = 0
    damaged: list[str] = dataclasses.field(default_factory=list)
    _key: str = ""
    _count: int = 0

    @classmethod
    def open(cls, folder: pathlib.Path, fingerprint: str, *, resume: bool) -> Checkpoint:
        """Return the checkpoint in a folder."""
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot keep finished layers in {folder}: {error.strerror or error}"
            ) from error
        foreign = resume and any(path.name.endswith(_ENDING) for path in _own_files(folder))
        return cls(_Folder(folder), str(folder), resume, foreign, _key=fingerprint)

    @classmethod
    def in_store(cls, store: Store, fingerprint: str) -> Checkpoint:
        """Return the checkpoint in a store, whose layers always serve a later run."""
        return cls(_InStore(store), store.location, resume=True, _key=fingerprint)

    def results(self, layers: Sequence[RefinedLayer]) -> list[LayerResult]:
        """Return the results of the first layers, as many as are there, if they are to be used."""
        found: list[LayerResult] = []
        if not self.resume:
            return found
        for layer in layers:
            name = self._name()
            content = self.place.read(name)
            if content is None:
                self.damaged += [name] if self.place.has(name) else []
                break
            found.append(_result(layer.node, content))
            self._advance(content)
        self.resumed = len(found)
        return found

    def save(self, result: LayerResult) -> None:
        """Keep the result of the next layer."""
        content = _encode(result)
        self.place.write(self._name(), content)
        self._advance(content)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report on what could not be resumed."""
        found = []
        if self.damaged:
            names = ", ".join(self.damaged)
            found.append(f"damaged files of the checkpoint {self.where} were solved again: {names}")
        elif self.foreign and not self.resumed:
            found.append(
                f"nothing was resumed: the layers in {self.where} are of another run (model, data, "
                "configuration or version differ)"
            )
        return tuple(found)

    def _name(self) -> str:
        return f"{self._count:05d}-{self._key}{_ENDING}"

    def _advance(self, content: bytes) -> None:
        self._key = hashlib.sha256(self._key.encode() + content).hexdigest()
        self._count += 1


def remove_checkpoint(folder: pathlib.Path) -> None:
    """Remove the files of a checkpoint, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        # The first layer goes last: as long as anything is left, it can be resumed.
        for path in sorted(_own_files(folder), reverse=True):
            path.unlink()
        folder.rmdir()


def _own_files(folder: pathlib.Path) -> Iterable[pathlib.Path]:
    return [path for path in folder.iterdir() if _OWN.fullmatch(path.name)]


def _encode(result: LayerResult) -> bytes:
    record = _Record(
        _stored(result.stored),
        None if result.bias is None else _stored(result.bias),
        float(result.before),
        float(result.after),
        result.kept,
    )
    return msgspec.msgpack.encode(record)


def _stored(array: Array) -> _Stored:
    return _Stored(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())


def _result(node: str, content: bytes) -> LayerResult:
    record = msgspec.msgpack.decode(content, type=_Record)
    return LayerResult(
        node,
        _array(record.stored),
        None if record.bias is None else _array(record.bias),
        record.before,
        record.after,
        kept=record.kept,
    )


def _array(stored: _Stored) -> Array:
    # A copy, because arrays of bytes cannot be written to.
    flat = np.frombuffer(stored.data, np.dtype(stored.dtype)).copy()
    return flat.reshape(stored.shape)


def fingerprint_of(
    state: Quantized, config: Refinement | None, data: str, reference: ir.Model | None = None
) -> str:
    """Return what a run's results depend on, as one word."""
    digest = hashlib.sha256(__version__.encode())
    for value in (config, state.config, state.plan, state.target):
        digest.update(msgspec.json.encode(value))
    digest.update(data.encode())
    params = state.params
    for group in (params.tensors, params.biases, params.biases_before):
        for name, found in sorted(group.items()):
            _add(digest, name, found.scale, found.zero_point)
    for name, bias in sorted(params.bias_values.items()):
        _add(digest, name, bias)
    for name, scale in sorted(params.scales.items()):
        _add(digest, name, np.float64(scale))
    models = [state.adapted, state.calibrated_model, *([] if reference is None else [reference])]
    hash_model(digest.update, *models)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, *arrays: object) -> None:
    digest.update(f"{name}\0".encode())
    for array in map(np.asarray, arrays):
        digest.update(f"{array.dtype} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
