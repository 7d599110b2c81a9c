"""QuaRot: Quark's options and its file of layers as a rotation of lowbit's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lowbit.config.transforms import Rotate, Rotation
from lowbit.errors import ConfigError
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.translate.options import ExtraOptions


class _Pair(msgspec.Struct):
    prev_nodes: tuple[str, ...] = ()
    next_nodes: tuple[str, ...] = ()
    norm_node: str | None = None


class _Pairs(msgspec.Struct):
    R1_pairs: tuple[_Pair, ...]


def read_rotation(options: ExtraOptions) -> Rotate:
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
    pairs = tuple(
        Rotation(writers=pair.prev_nodes, readers=pair.next_nodes, norm=pair.norm_node)
        for pair in read.R1_pairs
    )
    size = 4096 if options.RMatrixDim is None else options.RMatrixDim
    try:
        return Rotate(pairs=pairs, size=size, random=bool(options.UseRandomHad))
    except ConfigError as error:
        raise QuarkConfigError(f"RConfigPath {path}: {error}") from error
