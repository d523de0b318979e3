"""Datasets and loader functions that open images by OpenCV."""

import random
import traceback
import types

import feedmill
import numpy as np
import opencv_images
import pytest
import torch
from feedmill.planner import opencv_files
from helpers import equal_batches, native_loader, save_jpeg
from PIL import Image
from torchvision import transforms
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

cv2 = pytest.importorskip("cv2")

from opencv_datasets import Directly, Files  # noqa: E402  imports cv2

pytestmark = pytest.mark.skipif(
    not hasattr(cv2, "IMREAD_COLOR_RGB"), reason="this OpenCV has no IMREAD_COLOR_RGB"
)

RANDOM = [
    transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(),
    transforms.ColorJitter(0.3, 0.3), transforms.ToTensor(),
    transforms.Normalize([0.5] * 3, [0.25] * 3),
]
OF_IMAGES = transforms.Compose(RANDOM)
OF_ARRAYS = transforms.Compose([transforms.ToPILImage(), *RANDOM])
TENSORS = transforms.Compose([transforms.ToTensor(), transforms.Resize((20, 24), antialias=True)])
V2 = v2.Compose([
    v2.ToImage(), v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(),
    v2.ToDtype(torch.float32, scale=True),
])


MEAN = np.array([0.4, 0.5, 0.6], np.float32)


def by_numpy(image):
    image = (image.astype(np.float32) / 255.0 - MEAN) / 0.25
    return torch.from_numpy(image.transpose(2, 0, 1))


NUMPY = transforms.Compose([by_numpy, transforms.Resize((20, 24), antialias=True)])


class Converts(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index])
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


class Buffers(Files):
    def __getitem__(self, index):
        path = self.paths[index]
        with open(path, "rb") as file:
            image = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"can't read {path}")
        image = Image.fromarray(image[:, :, ::-1])
        return {"image": self.transform(image), "label": self.labels[index]}


class Reverses(Files):
    def __getitem__(self, index):
        image = self.read(self.paths[index])[..., ::-1]
        return self.transform(np.ascontiguousarray(image)), self.labels[index]

    def read(self, path):
        return cv2.imdecode(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_COLOR)


def to_rgb(image):
    if image is None:
        raise ValueError("no image")
    return cv2.cvtColor(image, code=cv2.COLOR_BGR2RGB)


class Helps(Files):
    def __getitem__(self, index):
        return self.transform(to_rgb(cv2.imread(self.paths[index]))), self.labels[index]


class TwoViews(Files):
    def __getitem__(self, index):
        image = Image.fromarray(to_rgb(cv2.imread(self.paths[index])))
        return self.transform(image), self.transform(image)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("opencv")
    return opencv_images.make_jpegs(root) | opencv_images.make_others(root)


@pytest.fixture
def paths(small_images):
    return [path for path, _ in ImageFolder(str(small_images)).samples]


def compare(dataset, **options):
    """Compares the batches with torch's, and the images' places in memory. Returns the last
    loader."""
    options = {"batch_size": 7, "shuffle": True, **options}
    for n_workers in (0, 2):
        made = []
        for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
            loader = kind(dataset, num_workers=n_workers, **options)
            torch.manual_seed(n_workers)
            random.seed(n_workers)
            made.append(list(loader))
        assert loader.explain().startswith("native path"), loader.explain()
        assert len(made[0]) == len(made[1]) > 0 and all(map(equal_batches, *made))
        images = [[_image_of(batch).stride() for batch in batches] for batches in made]
        assert images[0] == images[1] or options["batch_size"] is None
    for _ in feedmill.DataLoader(dataset, **{**options, "native": "verify"}):
        pass
    return loader


def _image_of(batch):
    return batch["image"] if isinstance(batch, dict) else batch[0]


CASES = [
    (Converts, OF_ARRAYS), (Converts, TENSORS), (Converts, NUMPY), (Buffers, OF_IMAGES),
    (Directly, OF_ARRAYS), (Directly, V2), (Reverses, OF_ARRAYS), (Reverses, TENSORS),
    (Helps, OF_ARRAYS), (TwoViews, OF_IMAGES),
]


@pytest.mark.parametrize("kind, transform", CASES)
def test_images_are_those_of_opencv(files, kind, transform):
    """Also of files that are decoded natively in no case, or which OpenCV turns."""
    # OpenCV 4 leaves the pixels that a file lacks undefined.
    given = [path for name, path in files.items() if name != "cut"]
    loader = compare(kind(given * 2, transform))
    n_made = loader.stats().decode.fallback_samples
    assert 0 < n_made < 2 * len(given) - 12
    assert all(n in (0, 1) for n in _n_made_by_opencv(kind, transform, files).values())


def _n_made_by_opencv(kind, transform, files):
    counts = {}
    for name in ("usual", "progressive", "grey", "upright"):
        loader = feedmill.DataLoader(kind([files[name]], transform))
        list(loader)
        counts[name] = loader.stats().decode.fallback_samples
        assert not counts[name], name
    for name in ("CMYK", "turned", "mirrored", "no EXIF before EXIF", "16 bits", "PNG of RGBA"):
        loader = feedmill.DataLoader(kind([files["usual"], files[name]], transform))
        list(loader)
        counts[name] = loader.stats().decode.fallback_samples
        assert counts[name] == 1, name
    return counts


def test_single_samples(files):
    compare(Converts([files["usual"], files["turned"], files["grey"]] * 2, OF_ARRAYS),
            batch_size=None)
    loader = native_loader(Converts([files["turned"], files["usual"]], OF_ARRAYS), batch_size=1)
    next(iter(loader))
    assert loader.draws(0, 0)  # of the image as OpenCV turns it


# ---- loaders of folders --------------------------------------------------------------------------


def as_image(path):
    return Image.fromarray(cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))


def as_array(path):
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise FileNotFoundError(path)
    return image[:, :, ::-1].copy()


def as_view(path):
    return cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]


@pytest.mark.parametrize("loader, transform", [
    (as_image, OF_IMAGES), (as_array, OF_ARRAYS), (as_array, TENSORS), (as_view, OF_ARRAYS),
])
def test_loaders_of_folders(small_images, loader, transform):
    compare(ImageFolder(str(small_images), transform, loader=loader))
    compare(DatasetFolder(str(small_images), loader, (".jpg",), transform))


def test_paths_that_are_no_strings(paths):
    for kind in (np.str_, type(opencv_images.Path())):
        dataset = ImageFolder.__new__(ImageFolder)
        vars(dataset).update(transform=OF_ARRAYS, target_transform=None, loader=as_array,
                             samples=[(kind(path), 1) for path in paths[:8]], root="", transforms=None)
        compare(dataset)


# ---- files that can't be read --------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("kind, transform", [CASES[0], CASES[3], CASES[4], CASES[6]])
def test_errors_are_those_of_the_dataset(paths, tmp_path, kind, transform, n_workers):
    for name, bad in opencv_images.make_unreadable(tmp_path).items():
        errors = []
        for loader in (torch.utils.data.DataLoader, feedmill.DataLoader):
            with pytest.raises(Exception) as caught:
                list(loader(kind([*paths[:3], bad], transform), batch_size=4, num_workers=n_workers))
            errors.append(caught.value)
            traceback.clear_frames(caught.tb)  # see helpers.take()
        assert type(errors[0]) is type(errors[1]), (name, errors)
        assert "NoImageError" not in str(errors[1])


class GoesOn(Files):
    """Takes another sample in the place of one that can't be loaded."""

    def __getitem__(self, index):
        try:
            image = cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2RGB)
            image = self.transform(Image.fromarray(image))
        except Exception:
            return self[random.randint(0, len(self) - 1)]
        return image, self.labels[index]


def test_datasets_that_go_on(paths, tmp_path):
    bad = opencv_images.make_unreadable(tmp_path).values()
    compare(GoesOn([*paths[:9], *bad, *paths[9:20]], OF_IMAGES), batch_size=4)


# ---- left to torch -------------------------------------------------------------------------------


class Bgr(Files):
    def __getitem__(self, index):
        return self.transform(cv2.imread(self.paths[index])), 1


class TwiceConverted(Files):
    def __getitem__(self, index):
        image = cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2RGB)
        return self.transform(image[:, :, ::-1].copy()), 1


class Grey(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_GRAYSCALE)
        return self.transform(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)), 1


class Unchanged(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_UNCHANGED)
        return self.transform(cv2.cvtColor(image, cv2.COLOR_BGR2RGB)), 1


class ToHsv(Files):
    def __getitem__(self, index):
        return self.transform(cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2HSV)), 1


class Resizes(Files):
    def __getitem__(self, index):
        image = cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2RGB)
        return self.transform(cv2.resize(image, (40, 40))), 1


class Half(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index])[:, ::2, ::-1]
        return self.transform(np.ascontiguousarray(image)), 1


class Mirrors(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)[:, ::-1]
        return self.transform(image.copy()), 1


class Black(Files):
    """Takes a black image in the place of one that can't be read."""

    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        if image is None:
            image = np.zeros((40, 40, 3), np.uint8)
        return self.transform(image), 1


class Or(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        image = np.zeros((40, 40, 3), np.uint8) if image is None else image
        return self.transform(image), 1


class Next(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        if image is None:
            return self[index - 1]
        return self.transform(image), 1


class ReadsTwice(Files):
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            file.read()
            image = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR_RGB)
        return self.transform(image), 1


class ReadsAnother(Files):
    def __getitem__(self, index):
        np.fromfile(self.paths[0], np.uint8)
        return self.transform(cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)), 1


class ReadsBytesOfAnother(Files):
    def __getitem__(self, index):
        np.frombuffer(open(self.paths[0], "rb").read(), np.uint8)
        return self.transform(cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)), 1


class Signed(Files):
    def __getitem__(self, index):
        image = cv2.imdecode(np.fromfile(self.paths[index], np.int8), cv2.IMREAD_COLOR_RGB)
        return self.transform(image), 1


class Part(Files):
    def __getitem__(self, index):
        image = cv2.imdecode(np.fromfile(self.paths[index], np.uint8, 300000), cv2.IMREAD_COLOR_RGB)
        return self.transform(image), 1


class IntoAnother(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index])
        return self.transform(cv2.cvtColor(image, cv2.COLOR_BGR2RGB, image)), 1


class TwoImages(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        return self.transform(image), self.transform(image)


class ByPillow(Files):
    """Decodes the same file twice."""

    def __getitem__(self, index):
        np.fromfile(self.paths[index], np.uint8)
        return self.transform(Image.open(self.paths[index]).convert("RGB")), 1


class ConvertsView(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)[:, :, ::-1]
        return self.transform(cv2.cvtColor(image, cv2.COLOR_BGR2RGB)), 1


class Kept(Files):
    def __getitem__(self, index):
        image = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        return self.transform(image), image.shape[0]


LEFT = [Bgr, TwiceConverted, Grey, Unchanged, ToHsv, Resizes, Half, Mirrors, Black, Or, Next,
        ReadsTwice, ReadsAnother, ReadsBytesOfAnother, Signed, Part, IntoAnother, TwoImages, ByPillow, ConvertsView, Kept]


def assert_left_to_torch(dataset):
    made = []
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        torch.manual_seed(1)
        try:
            made.append(list(kind(dataset, batch_size=4)))
        except Exception as error:
            made.append(type(error))
    text = feedmill.DataLoader(dataset, batch_size=4).explain()
    assert not text.startswith("native path")
    assert made[0] == made[1] if isinstance(made[0], type) else all(map(equal_batches, *made))
    return text


@pytest.mark.parametrize("kind", LEFT)
def test_these_are_left_to_torch(paths, kind):
    assert_left_to_torch(kind(paths[:8], TENSORS))


@pytest.mark.parametrize("transform", [
    OF_IMAGES, transforms.Compose([transforms.Resize((20, 20)), transforms.ToTensor()]), None,
    transforms.Compose([transforms.PILToTensor()]),
    v2.Compose([v2.ToImage(), v2.ColorJitter(0.4), v2.CenterCrop(20)]),
    v2.Compose([v2.ToImage(), v2.RandomRotation(20), v2.CenterCrop(20)]),
    transforms.Compose([transforms.ToPILImage("L"), transforms.CenterCrop(9), transforms.ToTensor()]),
])
def test_transforms_that_are_left_to_torch(paths, transform):
    assert_left_to_torch(Directly(paths[:8], transform))


def test_views_are_left_to_torch(small_images):
    """torch makes no tensor of a view with the channels in reverse order."""
    for transform in (TENSORS, NUMPY, transforms.Compose([by_numpy, transforms.Resize((9, 9))])):
        assert_left_to_torch(ImageFolder(str(small_images), transform, loader=as_view))


@pytest.mark.parametrize("loader", [
    cv2.imread, lambda path: cv2.imread(path), lambda path: cv2.imread(path + ""),
    lambda path: cv2.imread(str(path).lower(), cv2.IMREAD_COLOR_RGB),
    lambda path: cv2.imread(path, cv2.IMREAD_COLOR_RGB) if path else None,
])
def test_loaders_that_are_left_to_torch(small_images, loader):
    assert_left_to_torch(ImageFolder(str(small_images), OF_ARRAYS, loader=loader))


def test_replaced_functions(paths, monkeypatch):
    dataset = Converts(paths[:8], TENSORS)
    for name in ("imread", "cvtColor"):
        original = getattr(cv2, name)
        for other in (lambda *given, call=original: call(*given) // 2, cv2.flip):
            with monkeypatch.context() as patches:
                patches.setattr(cv2, name, other)
                assert_left_to_torch(dataset)
    other = types.ModuleType("cv2")
    other.imread, other.cvtColor = (lambda path: np.zeros((40, 40, 3), np.uint8)), cv2.cvtColor
    other.COLOR_BGR2RGB = cv2.COLOR_BGR2RGB
    monkeypatch.setitem(globals(), "cv2", other)
    assert_left_to_torch(dataset)


def test_decoders_that_differ(paths, monkeypatch, looked_at_anew):
    original = opencv_files.function
    differs = {"imdecode": lambda *given: cv2.imdecode(*given) ^ 1}
    monkeypatch.setattr(
        opencv_files, "function", lambda name: differs.get(name) or original(name)
    )
    text = feedmill.DataLoader(Converts(paths, TENSORS)).explain()
    assert not text.startswith("native path") and "differently than feedmill" in text


def test_limits_of_images(paths, monkeypatch):
    monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_WIDTH", "100")
    assert "OPENCV_IO_MAX_IMAGE_" in feedmill.DataLoader(Converts(paths, TENSORS)).explain()


def test_most_files_are_no_jpegs(tmp_path):
    for number in range(4):
        Image.open(save_jpeg(tmp_path / "one.jpg", 40, 30)).save(tmp_path / f"{number}.png")
    text = assert_left_to_torch(Converts(sorted(tmp_path.glob("*.png")), TENSORS))
    assert "only JPEGs" in text


def test_most_files_are_turned(tmp_path):
    """OpenCV would load them one by one."""
    paths = [tmp_path / f"{number}.jpg" for number in range(5)]
    for number, path in enumerate(paths):
        save_jpeg(path, 40, 30, seed=number, orientation=6 if number < 3 else 1)
    assert "turns most files" in assert_left_to_torch(Converts(paths, TENSORS))
    compare(Converts(paths[2:], TENSORS))


def test_hybrid_mode(files):
    """Calls the transform for what OpenCV decodes."""
    class Odd:
        def __call__(self, image):
            return torch.from_numpy(np.ascontiguousarray(image[:20, :20]).sum(2))

    given = [files[name] for name in ("usual", "turned", "CMYK", "grey")]
    dataset = ImageFolder.__new__(ImageFolder)
    vars(dataset).update(transform=Odd(), target_transform=None, loader=as_array, root="",
                         samples=[(str(path), 1) for path in given], transforms=None)
    loader = feedmill.DataLoader(dataset, batch_size=2, native="hybrid")
    assert loader.explain().startswith("hybrid")
    wanted = torch.utils.data.DataLoader(dataset, batch_size=2)
    assert all(map(equal_batches, loader, wanted))
