"""Finished layers in a folder, so that a run that was killed goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Sequence

import msgspec
import numpy as np

from lowbit.config.refinement import Refinement
from lowbit.errors import ConfigError, OutputError
from lowbit.refine.layers import LayerResult, RefinedLayer
from lowbit.scales.parameters import constant_values
from lowbit.state import Quantized

_RUN = "run.txt"


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The results of one run, a file each; a file is there complete or not at all."""

    folder: pathlib.Path
    fingerprint: str

    @classmethod
    def open(cls, folder: pathlib.Path, fingerprint: str, *, resume: bool) -> Checkpoint:
        """Return the checkpoint in a folder, empty unless it is to be resumed.

        Raises if it is of a run with other settings, data or model, or if the folder holds
        anything that is no checkpoint: that is not for us to clear away.
        """
        marker = folder / _RUN
        foreign = (
            sorted(p.name for p in folder.iterdir() if not _is_own(p)) if folder.is_dir() else []
        )
        if foreign:
            raise OutputError(
                f"{folder} cannot hold finished layers: it has other files ({foreign[0]}); "
                "give an empty folder or one that does not exist"
            )
        if resume and marker.exists() and marker.read_text("utf-8") != fingerprint:
            raise ConfigError(
                f"the checkpoint {folder} is of another run: model, data, configuration or version "
                "differ; start anew without --resume"
            )
        try:
            if not resume:
                _clear(folder)
            folder.mkdir(exist_ok=True)
            marker.write_text(fingerprint, encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"cannot keep finished layers in {folder}: {error.strerror or error}"
            ) from error
        return cls(folder, fingerprint)

    def results(self, layers: Sequence[RefinedLayer]) -> list[LayerResult]:
        """Return the results of the first layers, as many as are there."""
        found: list[LayerResult] = []
        for index, layer in enumerate(layers):
            path = self._path(index)
            if not path.exists():
                break
            with np.load(path, allow_pickle=False) as arrays:
                before, after, kept = (float(v) for v in arrays["figures"])
                found.append(
                    LayerResult(
                        layer.node,
                        arrays["stored"],
                        arrays.get("bias"),
                        before,
                        after,
                        kept=bool(kept),
                    )
                )
        return found

    def save(self, index: int, result: LayerResult) -> None:
        """Keep the result of a layer."""
        arrays = {
            "stored": result.stored,
            "figures": np.array([result.before, result.after, result.kept]),
        }
        if result.bias is not None:
            arrays["bias"] = result.bias
        path = self._path(index)
        unfinished = path.with_suffix(".part")
        try:
            with unfinished.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub has a flag among them
            os.replace(unfinished, path)
        except OSError as error:
            raise OutputError(
                f"cannot keep a finished layer in {self.folder}: {error.strerror or error}"
            ) from error

    def remove(self) -> None:
        """Forget everything: the run is over."""
        _clear(self.folder)
        with contextlib.suppress(OSError):  # somebody put a file there meanwhile: it stays
            self.folder.rmdir()

    def _path(self, index: int) -> pathlib.Path:
        return self.folder / f"{index:05d}.npz"


def _is_own(path: pathlib.Path) -> bool:
    return path.name == _RUN or (path.stem.isdigit() and path.suffix in (".npz", ".part"))


def _clear(folder: pathlib.Path) -> None:
    """Remove the files of a checkpoint, and no others."""
    if folder.is_dir():
        for path in folder.iterdir():
            if _is_own(path):
                path.unlink()


def fingerprint_of(state: Quantized, config: Refinement, data: str) -> str:
    """Return what a run's results depend on, as one word."""
    digest = hashlib.sha256(msgspec.json.encode(config))
    digest.update(msgspec.json.encode(state.plan))
    digest.update(data.encode())
    for name, params in sorted(state.params.tensors.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(params.scale).tobytes())
        digest.update(np.ascontiguousarray(params.zero_point).tobytes())
    for tensor in state.plan.weights():
        digest.update(np.ascontiguousarray(constant_values(state.adapted, tensor.name)).tobytes())
    return digest.hexdigest()
