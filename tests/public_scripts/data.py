"""Makes small data sets of images, in the layouts that public scripts read.

JPEGs have mixed sizes and samplings; every few are greyscale, CMYK or rotated by EXIF.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "support"))  # torchvision_cpu

CLASSES = ("n01440764", "n01443537", "n01484850")


def _pixels(width: int, height: int, seed: int) -> np.ndarray:
    """An RGB array with gradients, edges and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    phase = random.uniform(0, 6, 3)
    image = np.stack([127 + 100 * np.sin(x / 17 + y / 23 * (c + 1) + phase[c]) for c in range(3)], 2)
    image[(x + y) // 29 % 3 == 0] *= 0.6
    image += random.integers(-20, 21, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def _save(path: Path, seed: int, *, mixed: bool = True, size: tuple[int, int] | None = None) -> None:
    """Writes an image of the type that the path's suffix says.

    Args:
        path: of the file.
        seed: of size and pixels.
        mixed: whether some JPEGs are greyscale, CMYK, rotated by EXIF or progressive.
        size: (width, height) in pixels; None: one that depends on the seed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size or (180 + seed * 37 % 320, 180 + seed * 53 % 260)
    image = Image.fromarray(_pixels(width, height, seed))
    if path.suffix.lower() not in (".jpg", ".jpeg"):
        image.save(path)
        return
    options: dict[str, object] = {"quality": 75 + seed % 20, "subsampling": seed % 3}
    if mixed and seed % 7 == 3:
        image = image.convert("L")
    elif mixed and seed % 11 == 5:
        image = image.convert("CMYK")
    elif mixed and seed % 5 == 2:
        exif = Image.Exif()
        exif[0x0112] = 2 + seed % 7
        options["exif"] = exif
    elif mixed and seed % 13 == 6:
        options["progressive"] = True
    image.save(path, "JPEG", **options)


def _folders(root: Path, per_class: int, suffix: str, mixed: bool, seed: int = 0) -> None:
    for i in range(per_class * len(CLASSES)):
        name = f"{CLASSES[i % len(CLASSES)]}/{i:04}{suffix}"
        _save(root / name, seed + i, mixed=mixed)


# ---- layouts -------------------------------------------------------------------------------------


def imagenet(root: Path) -> None:
    """train/ and val/ with a folder per class, as for torchvision's ImageFolder and ImageNet."""
    import torch

    _folders(root / "train", 16, ".JPEG", mixed=True)
    _folders(root / "val", 8, ".JPEG", mixed=True, seed=1000)
    torch.save(({name: (name,) for name in CLASSES}, []), root / "meta.bin")


def imagenet_288(root: Path) -> None:
    """As imagenet, with each training image under six names, for samplers that want 256 images."""
    imagenet(root)
    for path in list((root / "train").rglob("*.JPEG")):
        for i in range(5):
            path.with_name(f"{path.stem}-{i}.JPEG").hardlink_to(path)


def imagenet_rgb(root: Path) -> None:
    """As imagenet, with RGB images only, for scripts that do not convert."""
    _folders(root / "train", 16, ".jpg", mixed=False)
    _folders(root / "val", 8, ".jpg", mixed=False, seed=1000)
    _folders(root / "test", 8, ".jpg", mixed=False, seed=2000)


def flat(root: Path) -> None:
    """Images in one folder."""
    for i in range(40):
        _save(root / f"{i:04}.jpg", i, mixed=False)


def pets(root: Path) -> None:
    """Images in one folder, whose names begin with the class."""
    for i in range(40):
        _save(root / f"{'cat dog bird'.split()[i % 3]}_{i:03}.jpg", i)


def unpaired(root: Path) -> None:
    """trainA, trainB, testA, testB, as for CycleGAN; and train/A, train/B, test/A, test/B."""
    for k, part in enumerate(("trainA", "trainB", "testA", "testB")):
        for i in range(16):
            _save(root / part / f"{i:04}.jpg", 100 * k + i, mixed=False)
            _save(root / part[:-1] / part[-1] / f"{i:04}.jpg", 100 * k + i, mixed=False)


def pairs(root: Path) -> None:
    """train/, val/ and test/ with two images side by side, as for pix2pix."""
    for k, part in enumerate(("train", "val", "test")):
        for i in range(16):
            _save(root / part / f"{i:04}.jpg", 100 * k + i, mixed=False, size=(512, 256))


def pix2pix_hd(root: Path) -> None:
    """train_A (label maps) and train_B (images)."""
    for i in range(16):
        _save(root / "train_B" / f"{i:04}.jpg", i, mixed=False, size=(512, 256))
        _save_mask(root / "train_A" / f"{i:04}.png", i, (512, 256))


def _save_mask(path: Path, seed: int, size: tuple[int, int], n: int = 20) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = _pixels(*size, seed)[:, :, 0] // 24 % n
    Image.fromarray(mask.astype(np.uint8), "L").save(path)


def voc(root: Path) -> None:
    """VOCdevkit/VOC2012 with JPEGImages, SegmentationClass and lists of names."""
    base = root / "VOCdevkit" / "VOC2012"
    names = [f"2007_{i:06}" for i in range(24)]
    for i, name in enumerate(names):
        size = (180 + i * 37 % 320, 180 + i * 53 % 260)
        _save(base / "JPEGImages" / f"{name}.jpg", i, mixed=False, size=size)
        _save_mask(base / "SegmentationClass" / f"{name}.png", i, size)
    lists = base / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(names[:16]) + "\n")
    (lists / "val.txt").write_text("\n".join(names[16:]) + "\n")
    (lists / "trainval.txt").write_text("\n".join(names) + "\n")
    _sbd(root / "benchmark_RELEASE" / "dataset")


def _sbd(root: Path) -> None:
    """benchmark_RELEASE/dataset, the further annotations of VOC, with masks for MATLAB."""
    from scipy.io import savemat

    names = [f"2008_{i:06}" for i in range(16)]
    for i, name in enumerate(names):
        size = (180 + i * 37 % 320, 180 + i * 53 % 260)
        _save(root / "img" / f"{name}.jpg", 300 + i, mixed=False, size=size)
        (root / "cls").mkdir(exist_ok=True)
        mask = (_pixels(*size, i)[:, :, 0] // 24 % 20).astype(np.uint8)
        savemat(root / "cls" / f"{name}.mat", {"GTcls": {"Segmentation": mask}})
    (root / "train.txt").write_text("\n".join(names[:8]) + "\n")
    (root / "val.txt").write_text("\n".join(names[8:]) + "\n")


def masks(root: Path) -> None:
    """data/imgs and data/masks."""
    for i in range(24):
        _save(root / "imgs" / f"{i:04}.jpg", i, mixed=False, size=(320, 240))
        _save_mask(root / "masks" / f"{i:04}.png", i, (320, 240), 2)


def div2k(root: Path) -> None:
    """DIV2K with images in high and low resolution, as for EDSR and BasicSR."""
    for i in range(1, 17):
        image = Image.fromarray(_pixels(256, 192, i))
        for scale in (1, 2, 4):
            if scale == 1:
                path = root / "DIV2K" / "DIV2K_train_HR" / f"{i:04}.png"
            else:
                folder = root / "DIV2K" / "DIV2K_train_LR_bicubic" / f"X{scale}"
                path = folder / f"{i:04}x{scale}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            size = (256 // scale, 192 // scale)
            image.resize(size, Image.Resampling.BICUBIC).save(path)
            if scale == 4:  # under the same name, as for BasicSR
                _copy(path, root / "x4" / f"{i:04}.png")


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


def captions(root: Path) -> None:
    """Images, and a table of their paths and captions."""
    lines = ["filepath\ttitle"]
    for i in range(40):
        path = root / "images" / f"{i:04}.jpg"
        _save(path, i)
        lines.append(f"{path}\ta picture of thing {i}")
    (root / "captions.csv").write_text("\n".join(lines) + "\n")


def celeba(root: Path) -> None:
    """images/ and list_attr_celeba.txt, as for StarGAN."""
    names = [f"{i:06}.jpg" for i in range(1, 2041)]
    for i, name in enumerate(names[:24]):
        _save(root / "images" / name, i, mixed=False, size=(178, 218))
    for name in names[24:]:
        (root / "images" / name).hardlink_to(root / "images" / names[int(name[:-4]) % 24])
    attributes = "Black_Hair Blond_Hair Brown_Hair Male Young".split()
    rows = [f"{n} " + " ".join("1" if (i >> k) % 2 else "-1" for k in range(5))
            for i, n in enumerate(names)]  # fmt: skip
    text = "\n".join([str(len(names)), " ".join(attributes), *rows]) + "\n"
    (root / "list_attr_celeba.txt").write_text(text)


def resnet18(root: Path) -> None:
    """resnet18.pth: the weights of a ResNet-18 without training."""
    import torch
    from torchvision_cpu import torchvision

    root.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), root / "resnet18.pth")


def vit(root: Path) -> None:
    """A small vision transformer without training, as transformers saves one."""
    import torchvision_cpu  # noqa: F401  before transformers imports torchvision
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                       intermediate_size=32)  # fmt: skip
    ViTForImageClassification(config).save_pretrained(root)
    ViTImageProcessor().save_pretrained(root)


def vit_mae(root: Path) -> None:
    """A small masked autoencoder without training, as transformers saves one."""
    import torchvision_cpu  # noqa: F401  before transformers imports torchvision
    from transformers import ViTImageProcessor, ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                          intermediate_size=32, decoder_hidden_size=32, decoder_num_hidden_layers=1,
                          decoder_num_attention_heads=2, decoder_intermediate_size=32)  # fmt: skip
    ViTMAEForPreTraining(config).save_pretrained(root)
    ViTImageProcessor().save_pretrained(root)


def no_weights(root: Path) -> None:
    """none.pth: a state_dict without entries. Models that load it keep their initial weights."""
    import torch

    root.mkdir(parents=True)
    torch.save({}, root / "none.pth")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (imagenet, imagenet_288, imagenet_rgb, flat, pets, unpaired, pairs, pix2pix_hd, voc, masks,
                     div2k, captions, celeba, resnet18, vit, vit_mae, no_weights)
}  # fmt: skip


class Given(NamedTuple):
    """Images for layouts like imagenet.

    Attributes:
        root: a folder with a folder of JPEGs per class.
        n_training: how many files there are for training, at least; images are repeated for that.
    """

    root: Path
    n_training: int


def folder(work: Path, layout: str, images: Given | None = None) -> Path:
    """The folder of a data set, made if it is not there yet.

    Args:
        work: where data sets are made.
        layout: its name.
        images: for layouts like imagenet; None: made ones.
    """
    if layout not in _LIKE_IMAGENET:
        images = None
    target = work / "data" / layout
    if images is not None:
        digest = hashlib.sha256(str(images.root.resolve()).encode()).hexdigest()[:10]
        target = work / f"data-{digest}-{images.n_training}" / layout
    complete = target.with_name(layout + ".complete")
    if not complete.exists():
        shutil.rmtree(target, ignore_errors=True)
        if images is None:
            LAYOUTS[layout](target)
        else:
            _imagenet_of(images, target)
        complete.touch()
    return target


_LIKE_IMAGENET = ("imagenet", "imagenet_288", "imagenet_rgb")


def _imagenet_of(images: Given, root: Path) -> None:
    """As imagenet, but with given images: each once in val/, and in train/ under several names."""
    import torch

    paths = sorted(path for path in images.root.glob("*/*") if path.is_file())
    if not paths:
        raise ValueError(f"{images.root} has no files in folders; --images needs a folder per class")
    for path in paths:
        _copy(path, root / "val" / path.parent.name / path.name)
    for i in range(-(-images.n_training // len(paths))):
        for path in paths:
            name = root / "train" / path.parent.name / f"{path.stem}-{i}{path.suffix}"
            name.parent.mkdir(parents=True, exist_ok=True)
            name.hardlink_to(root / "val" / path.parent.name / path.name)
    classes = sorted({path.parent.name for path in paths})
    torch.save(({name: (name,) for name in classes}, []), root / "meta.bin")


def layouts_in(text: str) -> Iterator[str]:
    """The layouts that a command names in braces."""
    return (name for name in LAYOUTS if f"{{{name}}}" in text)
