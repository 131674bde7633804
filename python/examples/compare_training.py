"""Does synchronized BatchNorm matter in a training of one's own? A network of PyTorch, one's own loop, three modes, six seeds.

    LOCKSTEP_PROGRAM=build/release/bin/lockstep PYTHONPATH=python python3 python/examples/compare_training.py [FOLDER [OUTPUT]]

FOLDER has images/{train,val}/*.png and masks/{train,val}/*.png of the same names, of two classes; it needs Pillow. Without it
the images are generated. With segmentation_models_pytorch the network is its U-Net, else a small one.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep.torch

SIZE, BATCH, EPOCHS = 64, 8, 3


def generated(images: int, seed: int) -> TensorDataset:
    """Squares, on a ground of a colour of each image's own."""
    random = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(images, 3, SIZE, SIZE, generator=random) + torch.randn(images, 3, 1, 1, generator=random)
    y = torch.zeros(images, SIZE, SIZE, dtype=torch.int64)
    for image, (top, left) in enumerate(torch.randint(0, SIZE // 2, (images, 2), generator=random).tolist()):
        y[image, top:top + SIZE // 3, left:left + SIZE // 3] = 1
    return TensorDataset(x + 0.5 * y[:, None], y)


def read(folder: Path, split: str, most: int) -> TensorDataset:
    """The first images of a split, scaled to SIZE."""
    from PIL import Image
    images, labels = [], []
    for path in sorted((folder / "images" / split).glob("*.png"))[:most]:
        image = Image.open(path).convert("RGB").resize((SIZE, SIZE))
        mask = Image.open(folder / "masks" / split / path.name).resize((SIZE, SIZE), Image.Resampling.NEAREST)
        images.append(torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 - 0.5)
        labels.append(torch.from_numpy(np.array(mask).astype(np.int64)))
    return TensorDataset(torch.stack(images), torch.stack(labels))


def network() -> nn.Module:
    try:
        import segmentation_models_pytorch as smp  # type: ignore[import-untyped, import-not-found, unused-ignore]
        unet: nn.Module = smp.Unet("resnet18", encoder_weights=None, classes=2, encoder_depth=3, decoder_channels=(32, 16, 16))
        return unet
    except ImportError:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
                             nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 2, 1))


FOLDER = Path(sys.argv[1]) if sys.argv[1:] else None
TRAIN, VAL = (read(FOLDER, "train", 128), read(FOLDER, "val", 64)) if FOLDER else (generated(64, 0), generated(32, 1))


def train(trial: lockstep.torch.Trial) -> None:
    torch.manual_seed(trial.seed)                      # so every mode begins with the same weights
    model = trial.convert(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loader = DataLoader(TRAIN, BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(trial.seed))
    for _ in range(EPOCHS):
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimizer.step()
            trial.log(loss.item())
        trial.score(lambda net: lockstep.torch.evaluate(net, DataLoader(VAL, BATCH), classes=2))


print(lockstep.torch.compare(train, output=sys.argv[2] if sys.argv[2:] else "runs/mine", modes=["local", "sync", "instance"], seeds=6,
                             global_batch=BATCH, images_per_device=1, classes=["ground", "thing"]))
