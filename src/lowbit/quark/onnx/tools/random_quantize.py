"""Quantize without calibration data, to see whether a model can be quantized and deployed."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence

from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.calibration.methods import PowerOfTwoMethod
from lowbit.quark.onnx.quantization.api import ModelQuantizer
from lowbit.quark.onnx.quantization.config.config import Config
from lowbit.quark.onnx.quantization.config.custom_config import get_default_config
from lowbit.quark.onnx.quantization.config.legacy import Subgraph
from lowbit.quark.onnx.tools import front

_LIST = re.compile(r"\[(.*?)\]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Quantize a file with a preset and random data."""

    def work() -> None:
        parser = front.make_parser("random_quantize", __doc__)
        front.add_files(parser)
        parser.add_argument("--config", default="XINT8", help="a preset of Quark's")
        parser.add_argument("--exclude_nodes", default="", help="names of nodes, apart by ;")
        parser.add_argument("--exclude_subgraphs", default="", help="[first],[last];[first],[last]")
        args = front.parse_files(parser, arguments)
        config = get_default_config(args.config)
        method = config.calibrate_method
        config = dataclasses.replace(
            config,
            calibrate_method=PowerOfTwoMethod.NonOverflow if args.config == "XINT8" else method,
            use_external_data_format=args.beside,
            nodes_to_exclude=_names(args.exclude_nodes, ";"),
            subgraphs_to_exclude=_subgraphs(args.exclude_subgraphs),
            extra_options={**config.extra_options, "UseRandomData": True},
        )
        ModelQuantizer(Config(config)).quantize_model(args.input, args.output)

    return front.guarded("random_quantize", work)


def _names(text: str, mark: str) -> list[str]:
    return [word.strip() for word in text.split(mark) if word.strip()]


def _subgraphs(text: str) -> list[Subgraph]:
    found: list[Subgraph] = []
    for part in _names(text, ";"):
        lists = _LIST.findall(part)
        if len(lists) != 2:
            raise QuarkConfigError(f"--exclude_subgraphs: {part!r} is not [first],[last]")
        found.append((_names(lists[0], ","), _names(lists[1], ",")))
    return found


if __name__ == "__main__":
    sys.exit(main())
