"""Whether the installed Pillow's compiler contracted multiplications and additions is checked."""

import feedmill
import helpers
import numpy as np
import pytest
from feedmill._ops import native
from feedmill.planner import contraction
from feedmill.planner.plan import FILTERS
from helpers import compose
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


def fused_blend(base, image, factor):
    """As Pillow's builds for AArch64 compute it: float32 results of exact products and sums."""
    one, other = (np.asarray(part).astype(np.float64) for part in (base, image))
    mixed = (np.float64(np.float32(factor)) * (other - one) + one).astype(np.float32)
    return Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))


def rounded_blend(base, image, factor):
    one, other = (np.asarray(part).astype(np.float32) for part in (base, image))
    mixed = np.float32(factor) * (other - one) + one
    return Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))


def test_the_installed_pillow_is_as_the_native_code(looked_at_anew):
    assert contraction.why_not_blends() == contraction.why_not_interpolation() == ""


def test_another_compiler_is_noticed(tmp_path, monkeypatch, looked_at_anew):
    """Which of the two Pillow's is depends on the CPU's kind."""
    path = tmp_path / "a" / "0.jpg"
    helpers.save_jpeg(path, 40, 30, seed=1)
    values = Image.linear_gradient("L"), Image.linear_gradient("L").transpose(2)
    differ = [blend for blend in (fused_blend, rounded_blend)
              if blend(*values, -0.4).tobytes() != Image.blend(*values, -0.4).tobytes()]
    assert len(differ) == 1
    monkeypatch.setattr(Image, "blend", differ[0])
    assert "rounds blends differently" in contraction.why_not_blends()
    jitter = compose(T.CenterCrop(9), T.RandomAdjustSharpness(1.8), T.ToTensor())
    text = feedmill.DataLoader(ImageFolder(str(tmp_path), jitter)).explain()
    assert text.startswith("torch's own path") and "rounds blends differently" in text, text


def test_another_interpolation_is_noticed(monkeypatch, looked_at_anew):
    original = native.map_pixels

    def map_pixels(*arguments):
        pixels = bytearray(original(*arguments))
        pixels[1000] ^= 1
        return bytes(pixels)

    monkeypatch.setattr(native, "map_pixels", map_pixels)
    reason = contraction.why_not_interpolation()
    assert "rounds rotated and sheared images differently" in reason and "bicubic" in reason


@pytest.mark.parametrize("factor", contraction._FACTORS)
def test_blends_of_all_values(factor):
    base, image = Image.linear_gradient("L"), Image.linear_gradient("L").transpose(2)
    base, image = (Image.merge("RGB", [one] * 3) for one in (base, image))
    got = native.operate(native.OPERATION_BLEND, image.tobytes(), *image.size, base.tobytes(), 0,
                         factor)
    assert got == Image.blend(base, image, factor).tobytes()


@pytest.mark.slow
def test_many_blends():
    base, image = Image.linear_gradient("L"), Image.linear_gradient("L").transpose(2)
    base, image = (Image.merge("RGB", [one] * 3) for one in (base, image))
    for factor in map(float, np.linspace(-1.5, 3, 181)):
        got = native.operate(native.OPERATION_BLEND, image.tobytes(), *image.size, base.tobytes(), 0,
                             factor)
        assert got == Image.blend(base, image, factor).tobytes(), factor


def affine_transforms():
    """Sheared, moved, scaled, rotated and any other ones."""
    random = np.random.default_rng(0)
    for shear in map(float, np.linspace(-0.6, 0.6, 49)):
        yield 1, shear, 0, 0, 1, 0
        yield 1, 0, 0, shear, 1, 0
        yield 1, 0, shear * 10, 0, 1, shear * 7
        yield 1 + shear, 0, -3.3, 0, 1 - shear, 2.1
    for angle in np.deg2rad(np.linspace(-180, 180, 73)):
        c, s = float(np.cos(angle)), float(np.sin(angle))
        yield c, s, 130 - c * 130 - s * 100, -s, c, 100 + s * 130 - c * 100
    for _ in range(60):
        changes = random.normal(size=6) * (0.3, 0.3, 5, 0.3, 0.3, 5)
        yield tuple(map(float, changes + (1, 0, 0, 0, 1, 0)))


@pytest.mark.slow
@pytest.mark.parametrize("resample", [Image.BILINEAR, Image.BICUBIC])
def test_many_transforms(resample):
    noise = np.random.default_rng(0).integers(0, 256, (200, 260, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    for matrix in affine_transforms():
        wanted = image.transform(image.size, Image.Transform.AFFINE, matrix, resample).tobytes()
        got = native.map_pixels(native.MAPPING_AFFINE, noise.tobytes(), image.size, image.size,
                                (*map(float, matrix), 0.0, 0.0), FILTERS[int(resample)], (0, 0, 0))
        assert got == wanted, matrix
