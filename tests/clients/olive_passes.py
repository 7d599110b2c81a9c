"""Run Olive's Quark pass once for each configuration in a file. Runs with Olive's own Python.

python olive_passes.py MODEL CASES.json FOLDER
"""

import json
import pathlib
import sys

import numpy as np
import torch
from olive.data.config import DataComponentConfig, DataConfig
from olive.data.registry import Registry
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.quark_quantizer.quark_quantization import QuarkQuantization


class Noise(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple:
        noise = np.random.default_rng(index).normal(size=(3, 16, 16)).astype(np.float32)
        return {"input": noise}, 0


@Registry.register_dataset()
def noise(**_: object) -> Noise:
    return Noise()


def main(model: str, cases: str, folder: str) -> None:
    for name, config in json.loads(pathlib.Path(cases).read_text()).items():
        if not config.pop("random", False):
            config["data_config"] = DataConfig(
                name="noise",
                load_dataset_config=DataComponentConfig(type="noise"),
                dataloader_config=DataComponentConfig(params={"batch_size": 1}),
            )
        olive_pass = create_pass_from_dict(QuarkQuantization, config, disable_search=True)
        olive_pass.run(ONNXModelHandler(model), pathlib.Path(folder, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
