"""A script of AMD Quark's, as RyzenAI-SW has it: a preset, images, perhaps a subgraph in float.

    python quark_script.py MODEL OUTPUT PRESET IMAGES.npy [FIRST,... LAST,...] [--external]

It runs unchanged with amd-quark and with lowbit, so that their models can be compared.
"""

import argparse

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config


class Reader(CalibrationDataReader):
    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.images = iter(np.load(path))

    def get_next(self) -> dict | None:
        image = next(self.images, None)
        return None if image is None else {self.name: image}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("preset")
    parser.add_argument("images")
    parser.add_argument("subgraph", nargs="*")
    parser.add_argument("--external", action="store_true")
    args = parser.parse_args()
    config = get_default_config(args.preset)
    config.print_summary = False
    config.use_external_data_format = args.external
    if args.subgraph:
        first, last = (names.split(",") for names in args.subgraph)
        config.subgraphs_to_exclude = [(first, last)]
    name = onnx.load(args.model, load_external_data=False).graph.input[0].name
    reader = Reader(name, args.images)
    ModelQuantizer(Config(global_quant_config=config)).quantize_model(
        args.model, args.output, reader
    )


if __name__ == "__main__":
    main()
