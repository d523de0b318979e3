"""The check whether the installed Pillow and torchvision give the native pixels. It compares
pixels, not versions."""

import io
import itertools
import random
import subprocess
import sys

import feedmill
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.data import ImageList
from feedmill.planner import comparing, equal_augmentations, equality
from feedmill.planner.plan import KINDS, Op
from helpers import compose, native_loader
from PIL import Image, ImageEnhance, ImageFilter, JpegImagePlugin, PngImagePlugin
from torchvision import transforms as T
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import InterpolationMode

HEAD = (T.Resize((8, 8)), T.PILToTensor())
needs_png = pytest.mark.skipif("PNG" not in native.formats(), reason="built without libspng")
needs_webp = pytest.mark.skipif("WebP" not in native.formats(), reason="built without libwebp")


@pytest.fixture(autouse=True)
def looked_at_anew():
    """Clears the process's cached comparisons before and after the test."""
    comparing.forget()
    yield
    comparing.forget()


def folder(root, *steps):
    return ImageFolder(str(root), compose(*(steps or HEAD)))


def explained(dataset, **options):
    return feedmill.DataLoader(dataset, batch_size=8, **options).explain()


def assert_left_to_torch(dataset, *words, **options):
    """Expects torch's path with these reasons, and torch's batches. Returns the reasons."""
    text = explained(dataset, **options)
    assert text.startswith("torch's own path, because\n"), text
    for word in words:
        assert word in text, text
    ours = feedmill.DataLoader(dataset, batch_size=8, **options)
    for mine, other in zip(ours, torch.utils.data.DataLoader(dataset, batch_size=8)):
        assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1])
    assert ours.stats().path == "torch"
    with pytest.raises(RuntimeError, match="native path can't be taken"):
        native_loader(dataset)
    return text


# ---- the installed libraries ---------------------------------------------------------------------

ALL_PARTS = [Op(KINDS[name], filter=filter_, values=(0.0,) * 8 + (15,))
             for name in ("RandomVerticalFlip", "RandomGrayscale", "RandomInvert", "RandomPosterize",
                          "RandomSolarize", "RandomAutocontrast", "RandomEqualize",
                          "RandomAdjustSharpness", "ColorJitter", "RandomRotation", "RandomAffine")
             for filter_ in (0, 1, 5)]
PADS = [Op(KINDS["Pad"], values=(1, 1, 1, 1, mode, 0, 0, 0, 0)) for mode in range(4)]


def test_every_part_equals_the_installed_libraries():
    assert equality.native_formats() == native.formats().split(", ")
    assert equality.rejected_formats() == 0 and equality.reasons_against_formats() == []
    assert len({equality.resize_order(filter_) for filter_ in range(5)}) == 1
    for channels in (3, 1):
        assert equal_augmentations.why_not_ops(ALL_PARTS + PADS, channels) == []
    assert equal_augmentations.why_not_ops([Op(KINDS["RandomBlur"])], 3) == []
    automatic = [Op(KINDS["AutoAugment"], filter=5)]
    assert len(list(equal_augmentations._parts_of(automatic, 3))) == 11
    assert equal_augmentations.why_not_ops(automatic, 3) == []


def test_the_test_images_are_decoded_natively():
    """Otherwise Pillow would be compared with itself."""
    makers = {"JPEG": equality._jpegs, "PNG": equality._pngs, "WebP": equality._webps}
    for name in native.formats().split(", "):
        for kind, data in makers[name]():
            assert type(native.imread(data, False, 1 << 20)) is tuple, (name, kind)
            assert Image.open(io.BytesIO(data)).format == name.upper()
    sampled = {kind: JpegImagePlugin.get_sampling(Image.open(io.BytesIO(data)))
               for kind, data in equality._jpegs()}
    assert (sampled["4:4:4"], sampled["4:2:2"], sampled["4:2:0"]) == (0, 1, 2)
    layers = {kind: Image.open(io.BytesIO(data)).layer[0][1:3] for kind, data in equality._jpegs()}
    assert (layers["4:4:0"], layers["4:1:1"], layers["1x4"]) == ((1, 2), (4, 1), (1, 4))


def resized_natively(filter_, order):
    run = comparing.Run([equality._CROP._replace(filter=filter_)],
                        comparing.made(*equality._CROPPED), equality._N_CROPS, order)
    images = [image.copy() for _, image in itertools.islice(run.results(), equality._N_CROPS)]
    run.close()
    return images


@pytest.mark.parametrize("filter_", [0, 1, 3, 4])  # not box and nearest, which hardly round
def test_the_resize_orders_differ_on_the_test_images(filter_):
    results = [resized_natively(filter_, order) for order in range(3)]
    for one, other in itertools.combinations(results, 2):
        assert not all(map(np.array_equal, one, other))


@pytest.mark.parametrize("guess", [0, 1, 2])
def test_the_resize_order_is_found_by_comparing_pixels(small_images, monkeypatch, guess):
    wanted = equality.resize_order(0)
    comparing.forget()
    monkeypatch.setattr(equality, "likely_resize_order", lambda: guess)
    assert equality.resize_order(0) == wanted
    assert f"(resize order {wanted})" in explained(folder(small_images))


def test_the_comparison_runs_once_and_draws_no_random_number(small_images, monkeypatch):
    dataset = folder(small_images, T.ColorJitter(0.5), *HEAD)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert explained(dataset).startswith("native path")
    assert torch.equal(torch.get_rng_state(), state)
    for module in (equality, equal_augmentations):
        monkeypatch.setattr(module, "why_not", None)
    assert explained(folder(small_images, T.ColorJitter(0.5), *HEAD)).startswith("native path")


def test_nothing_is_compared_before_it_is_needed():
    text = ("import sys, feedmill; feedmill.DataLoader([1, 2]).explain(); "
            "from feedmill.planner import comparing; assert not comparing._found; "
            "assert 'PIL' not in sys.modules")
    subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.DEVNULL, timeout=600)


# ---- libraries that give other pixels ------------------------------------------------------------


def change_loads(monkeypatch, kind, is_changed=lambda image: True):
    """Makes a Pillow plugin return other pixels, as if it used another decoder library."""
    original = kind.load

    def load(self):
        before = self.tile
        result = original(self)
        if before and is_changed(self):
            changed = Image.new(self.mode, self.size)
            changed.frombytes(bytes(value ^ (value == 99) for value in self.tobytes()))
            self.im = changed.im
        return result

    monkeypatch.setattr(kind, "load", load)


def test_a_different_jpeg_decoder(small_images, monkeypatch):
    change_loads(monkeypatch, JpegImagePlugin.JpegImageFile)
    text = assert_left_to_torch(folder(small_images), "decodes JPEGs differently than feedmill does")
    assert "(4:4:4, 4:2:2, 4:2:0, 4:2:0, coarse)" in text


def test_a_different_chroma_upsampling(small_images, monkeypatch):
    """If one kind of subsampling differs, no JPEG is native, as files are not inspected before."""
    change_loads(monkeypatch, JpegImagePlugin.JpegImageFile,
                 lambda image: image.layer[0][1:3] == (1, 2))
    dataset = folder(small_images)
    text = assert_left_to_torch(dataset, "test images differ (4:4:0)")
    assert text == explained(dataset, native="hybrid")
    assert text.count("\n") == 2 and text.endswith("not deferred: see above")
    assert "(4:4:0)" in explained(torch.utils.data.Subset(dataset, [1, 2]))
    offered = ImageList([path for path, _ in dataset.samples], transform=compose(*HEAD))
    assert "(4:4:0)" in explained(offered)


def test_imread_uses_pillow_then(small_images, monkeypatch):
    path = next(small_images.rglob("*.jpg"))
    change_loads(monkeypatch, JpegImagePlugin.JpegImageFile)
    wanted = np.asarray(Image.open(path).convert("RGB"))
    natively = native.imread(str(path), False, 1 << 20)[0]
    assert wanted.tobytes() != natively and np.array_equal(feedmill.imread(path, "rgb"), wanted)


@needs_png
def test_a_different_png_decoder(small_images, tmp_path, monkeypatch):
    """PNG files alone go through Pillow."""
    (tmp_path / "c").mkdir()
    for number, path in enumerate(sorted(small_images.rglob("*.jpg"))[:8]):
        image = Image.open(path)
        image.save(tmp_path / "c" / f"{number}.{'png' if number % 4 == 0 else 'jpg'}")
    change_loads(monkeypatch, PngImagePlugin.PngImageFile)
    loader = native_loader(folder(tmp_path), batch_size=8)
    (images, _), = loader
    (wanted, _), = torch.utils.data.DataLoader(loader.dataset, batch_size=8)
    assert torch.equal(images, wanted)
    assert (loader.stats().decode.native_samples, loader.stats().decode.fallback_samples) == (6, 2)
    assert "decodes PNG images differently than feedmill does" in loader.explain()
    assert "note       the installed Pillow" in loader.explain()
    assert np.array_equal(feedmill.imread(tmp_path / "c" / "0.png", "rgb"),
                          np.asarray(Image.open(tmp_path / "c" / "0.png").convert("RGB")))


@needs_webp
def test_a_pillow_without_webp(small_images, monkeypatch):
    Image.init()
    monkeypatch.delitem(Image.SAVE, "WEBP")
    text = explained(folder(small_images))
    assert text.startswith("native path")
    assert "could not check" in text and "decodes WebP images like feedmill does" in text
    assert equality.rejected_formats() == native.FORMAT_WEBP
    assert "WebP" not in equality.native_formats()


def change_core(monkeypatch, method, caller=None):
    """Makes Pillow's C code for an operation, which the function named ``caller`` calls, return
    other pixels, as pillow-simd does."""
    original = Image.Image.im

    class Core:
        def __init__(self, core):
            self._core = core

        def __getattr__(self, name):
            return getattr(self._core, name)

    def changed(self, *arguments):
        result = getattr(self._core, method)(*arguments)
        return result.point([value ^ (value == 120) for value in range(256)] * result.bands, None)

    setattr(Core, method, changed)

    def im(self):
        core = original.fget(self)
        return Core(core) if sys._getframe(1).f_code.co_name in (method, caller) else core

    monkeypatch.setattr(Image.Image, "im", property(im, original.fset))


def test_a_different_resize(small_images, monkeypatch):
    change_core(monkeypatch, "resize")
    assert_left_to_torch(folder(small_images), "resizes by bilinear differently than feedmill does")
    bicubic = T.Resize((8, 8), InterpolationMode.BICUBIC)
    assert_left_to_torch(folder(small_images, bicubic, T.ToTensor()), "resizes by bicubic")
    crop = folder(small_images, T.CenterCrop(20), T.PILToTensor())
    assert explained(crop).startswith("native path")
    small = CIFAR10.__new__(CIFAR10)
    small.data = np.zeros((4, 32, 32, 3), np.uint8)
    small.targets, small.target_transform = [0, 1, 2, 3], None
    small.transform = compose(T.Resize(16), T.PILToTensor())
    assert "resizes by bilinear" in explained(small)
    small.transform = T.PILToTensor()
    assert explained(small).startswith("native path")


def blurred(image):
    return image.filter(ImageFilter.GaussianBlur(1.5)) if random.random() < 0.5 else image


def test_a_different_blur(small_images, monkeypatch):
    dataset = folder(small_images, blurred, *HEAD)
    assert explained(dataset).startswith("native path")
    change_core(monkeypatch, "gaussian_blur", "filter")
    comparing.forget()
    text = explained(dataset)
    assert text.startswith("torch's own path") and "applies RandomBlur differently" in text
    assert explained(folder(small_images)).startswith("native path")


@pytest.mark.parametrize(("kind", "step", "words"), [
    ("Brightness", T.ColorJitter(0.5), "applies brightness differently"),
    ("Contrast", T.ColorJitter(contrast=0.5), "applies contrast differently"),
    ("Color", T.RandomApply([T.ColorJitter(saturation=0.5)]), "applies saturation differently"),
    ("Sharpness", T.RandomAdjustSharpness(2), "applies RandomAdjustSharpness differently"),
    ("Sharpness", T.RandAugment(), "applies RandomAdjustSharpness differently"),
])
def test_a_different_enhancement(small_images, monkeypatch, kind, step, words):
    enhance = getattr(ImageEnhance, kind)
    original = ImageEnhance._Enhance.enhance

    def changed(self, factor):
        image = original(self, factor)
        return image.point(lambda value: value ^ (value == 120))

    monkeypatch.setattr(enhance, "enhance", changed, raising=False)
    text = explained(folder(small_images, step, *HEAD))
    assert text.startswith("torch's own path") and words in text
    assert text.count("differently than feedmill") == 1
    other = T.ColorJitter(hue=0.1)
    assert explained(folder(small_images, other, *HEAD)).startswith("native path")


def test_a_different_affine_map(small_images, monkeypatch):
    original = Image.Image._Image__transformer

    def changed(self, *arguments, **options):
        original(self, *arguments, **options)
        self.paste(self.point(lambda value: value ^ (value == 120)))

    monkeypatch.setattr(Image.Image, "_Image__transformer", changed)
    step = T.RandomAffine(10, interpolation=InterpolationMode.BILINEAR)
    text = explained(folder(small_images, step, *HEAD))
    assert "applies RandomAffine by bilinear differently" in text


@pytest.mark.parametrize(("owner", "name", "step", "words"), [
    (JpegImagePlugin.JpegImageFile, "load", HEAD[0], "decodes JPEGs like feedmill does"),
    (ImageEnhance._Enhance, "enhance", T.ColorJitter(0.5), "applies brightness like feedmill does"),
])
def test_a_failed_comparison_means_torchs_path(small_images, monkeypatch, owner, name, step, words):
    def fail(self, *_):
        raise ZeroDivisionError("in Pillow")

    monkeypatch.setattr(owner, name, fail)
    text = explained(folder(small_images, step, *HEAD))
    assert words in text and "ZeroDivisionError: in Pillow" in text


def test_a_native_loader_that_cannot_be_opened(small_images, monkeypatch):
    def fail(**_):
        raise native.Error("no thread")

    monkeypatch.setattr(comparing, "native", type("Native", (), {"Loader": staticmethod(fail)}))
    text = explained(folder(small_images, T.ColorJitter(0.5), *HEAD))
    assert "could not check that Pillow augments images like feedmill does: Error: no thread" in text
    assert "resizes by bilinear like feedmill does: Error: no thread" in text
