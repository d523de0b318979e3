"""Functions that several Python tests share."""

import json
import linecache
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path

import feedmill
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.planner.plan import CENTER_CROP, Op
from feedmill.profiling.counting.records import CAUSES, STORAGE_PARTS
from feedmill.profiling.report.stats import Stats
from PIL import Image
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import functional

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def skip(reason):
    """Skips the running test; FEEDMILL_NO_SKIP=1 makes that a failure."""
    if os.environ.get("FEEDMILL_NO_SKIP") == "1":
        pytest.fail(f"skipped, though FEEDMILL_NO_SKIP is set: {reason}")
    pytest.skip(reason)


def slow_but_for(kept, values):
    """Parameters of a test: all but those in `kept` are slow."""
    return [one if one in kept else pytest.param(one, marks=pytest.mark.slow) for one in values]


def need_uring():
    try:
        native.Loader(ops=[Op(CENTER_CROP, 8, 8)], dtype="uint8", n_samples=1,
                      batch_size=1, n_threads=1, reader="uring").close()
    except native.Error as error:
        skip(f"io_uring is not available: {error}")


# ---- images --------------------------------------------------------------------------------------


def pixels(width, height, seed=0, noise=30):
    """An RGB array with gradients, edges and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    phase = random.uniform(0, 6, 3)
    image = np.stack([127 + 100 * np.sin(x / 7 + y / 11 * (c + 1) + phase[c]) for c in range(3)], 2)
    image[(x + y) // 9 % 3 == 0] *= 0.6
    image += random.integers(-noise, noise + 1, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def save_jpeg(path, width, height, seed=0, mode="RGB", orientation=None, **options):
    """Writes a JPEG with Pillow; `options` are those of Image.save()."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(width, height, seed)).convert(mode)
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    image.save(path, "JPEG", **{"quality": 85, **options})
    return path


def save_jpegs(root, n, width, height):
    """The paths of n JPEGs of growing sizes, in turn with and without subsampled colors."""
    paths = [root / f"{i}.jpg" for i in range(n)]
    for i, path in enumerate(paths):
        save_jpeg(path, width + i, height + 2 * i, seed=i, subsampling=2 * (i % 2))
    return paths


def save_bare_jpeg(path, width, height, seed=0):
    """Writes a JPEG that the native decoder leaves to Pillow: one without Huffman tables, as in
    Motion JPEG."""
    data = save_jpeg(path, width, height, seed).read_bytes()
    while (at := data.find(b"\xff\xc4")) > 0:
        data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    Path(path).write_bytes(data)
    return Path(path)


def make_jpeg(path, **options):
    """Writes a JPEG of a kind that Pillow can't write, with the tool mkjpeg."""
    tool = os.environ.get("FEEDMILL_MKJPEG")
    if not tool:
        skip("FEEDMILL_MKJPEG does not name the tool mkjpeg (tests/support)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    words = [f"{key}={value}" for key, value in options.items()]
    subprocess.run([tool, *words, str(path)], check=True)
    return Path(path)


# ---- datasets and loaders ------------------------------------------------------------------------


def compose(*steps):
    return transforms.Compose(list(steps))


def explained(folder, *steps):
    """Which path a loader of an ImageFolder with these transforms takes, and why."""
    return feedmill.DataLoader(ImageFolder(str(folder), compose(*steps))).explain()


class Views:
    """A transform that returns a list of images."""

    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


def module_of(source, old="", new="", name="module_of_test"):
    """A module with a source, which is available as a file's; one text in it is replaced."""
    assert not old or source.count(old) == 1, old
    text = source.replace(old, new) if old else source
    file = f"<{name} {abs(hash(text))}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    module = types.ModuleType(name)
    exec(compile(text, file, "exec"), vars(module))
    return module


def numbered_folder(root, transform=None):
    """An ImageFolder whose targets are the dataset's indices."""
    steps = [transforms.Resize((8, 8)), transforms.PILToTensor()]
    dataset = ImageFolder(str(root), transform or compose(*steps))
    dataset.samples = [(path, index) for index, (path, _) in enumerate(dataset.samples)]
    return dataset


def native_loader(dataset, **options):
    """A loader on the native path whose random numbers draws() can tell."""
    return feedmill.DataLoader(dataset, **{"native": "require", "rng": "feedmill", **options})


def remote_loader(dataset, **options):
    """A loader on the native path with torch's random numbers, of seven images a batch."""
    loader = feedmill.DataLoader(dataset, **{"batch_size": 7, "native": "require", **options})
    assert loader.explain().startswith("native path")
    return loader


def images_of(loader):
    """All images of an epoch."""
    return torch.cat([images for images, _ in loader])


def take(iterator):
    """The targets of the next batch, "end", or (type, first line) of the exception of next().

    Clears the exception's frames: torch's exceptions are in a reference cycle with its iterator,
    and when the garbage collector frees that, it waits five seconds for each worker.
    """
    try:
        return next(iterator)[1].tolist()
    except StopIteration:
        return "end"
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        return type(error), str(error).splitlines()[0]


def targets_of(loader):
    """The targets of one epoch, batch by batch."""
    return [batch[1].tolist() for batch in loader]


def reference(loader, index, epoch, occurrence=0):
    """A sample, made by torchvision's functions with the random numbers that the loader drew."""
    dataset = loader.dataset
    image = dataset.loader(dataset.samples[index][0])
    draws = iter(loader.draws(index, epoch, occurrence))
    for step in dataset.transform.transforms:
        if type(step) is transforms.RandomResizedCrop:
            name, box = next(draws)
            assert name == "RandomResizedCrop"
            image = functional.resized_crop(
                image, box["top"], box["left"], box["height"], box["width"], step.size,
                step.interpolation,
            )
        elif type(step) is transforms.RandomHorizontalFlip:
            name, values = next(draws)
            assert name == "RandomHorizontalFlip"
            image = functional.hflip(image) if values["flip"] else image
        else:
            if type(step) in (transforms.Resize, transforms.CenterCrop):
                next(draws)
            image = step(image)
    return image


def equal_batches(one, other):
    """Whether batches, nested in lists, tuples and dicts, have the same types, shapes and
    values."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return equal_batches(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_batches, one, other))
    return one == other


def assert_same_image(got, wanted, what):
    """Compares two images bit for bit, so that NaNs and signs of zero count as well."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, what
    if got.is_floating_point():
        bits = torch.int32 if got.dtype == torch.float32 else torch.int16
        got, wanted = got.view(bits), wanted.view(bits)
    n_wrong = int((got != wanted).sum())
    assert n_wrong == 0, f"{what}: {n_wrong} of {got.numel()} values differ"


def inexact_pieces(steps, counters):
    """Error messages for the steps, and for the total, whose wait is not the sum of its causes, or
    whose wait for storage is not that of its parts."""
    waits, pieces = steps["data_wait_ns"], sum(steps[name] for name in CAUSES)
    # The sum of unsigned numbers may be right although one of them has wrapped around.
    wrong = (waits != pieces) | np.any([steps[name] > waits for name in CAUSES], axis=0)
    wrong |= steps["storage_ns"] != sum(steps[name] for name in STORAGE_PARTS)
    wrong |= np.any([steps[name] > steps["storage_ns"] for name in STORAGE_PARTS], axis=0)
    texts = [f"{pieces[i]} of {waits[i]} ns: {steps[i]}" for i in np.flatnonzero(wrong)]
    total = sum(counters.get(f"wait_{name}", 0) for name in CAUSES)
    if total != counters["data_wait_ns"]:
        texts.append(f"{total} of {counters['data_wait_ns']} ns altogether")
    return texts


def changed(stats, **counters):
    """The same Stats with other values of these counters, by their flat names."""
    names = ("reasons", "steps", "slow_samples", "sample_errors", "system")
    others = {name: getattr(stats, name) for name in names}
    return Stats.from_flat({**stats.flat(), **counters}, **others)


def log_lines(path):
    """The parsed lines of a complete log, by their type."""
    lines = {}
    for line in map(json.loads, Path(path).read_text().splitlines()):
        lines.setdefault(line["type"], []).append(line)
    return lines


# ---- processes -----------------------------------------------------------------------------------

PRELUDE = """
import sys
sys.path.insert(0, {here!r})
import conftest, helpers, feedmill, torch
"""


def start_script(text, *arguments, **options):
    """Starts a Python process that runs `text` after importing what tests use."""
    code = PRELUDE.format(here=str(Path(__file__).parent)) + text
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_script(text, *arguments, **options):
    """Runs such a process to its end and returns its output. It must exit with 0, without output on
    stderr."""
    process = start_script(text, *arguments, **options)
    try:
        out, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the process hangs; so far: {process.communicate()}")
    assert process.returncode == 0, f"exit status {process.returncode}: {out}{errors}"
    assert errors == ""
    return out


# A flag in a thread's "stat" (PF_IO_WORKER in Linux's sched.h): the thread is a worker of io_uring,
# which the kernel starts and ends. Its name is set only a moment after its start.
_IO_WORKER = 0x10


def in_child(function, seconds=600):
    """Runs `function` in a forked child and returns its exit status. A child that hangs is ended by
    a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(seconds)
        try:
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def threads():
    """Ids of this process's threads, without the workers of io_uring."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                _, _, after_name = file.read().rpartition(")")
        except OSError:
            continue  # the thread has ended
        if after_name and not int(after_name.split()[6]) & _IO_WORKER:
            found.add(int(task))
    return found


def threads_left(before):
    """Threads that have started since `before`. Waits, as joined threads may still be listed for a
    moment."""
    for _ in range(15000):
        if not (left := threads() - before):
            break
        time.sleep(0.02)
    return left


def cifar_in_memory(n):
    """CIFAR10 with n random images, without its files."""
    dataset = CIFAR10.__new__(CIFAR10)
    random = np.random.default_rng(5)
    dataset.data = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    dataset.targets = random.integers(0, 10, n).tolist()
    dataset.train, dataset.root, dataset.target_transform, dataset.transforms = True, "", None, None
    return dataset


def outcomes_of(make, dataset, n_workers, ignored=r" \[dataset[^]]*\]"):
    """What a loader gives in turn: batches, and the types and texts of errors. Then what torch's and
    Python's generators give.

    Args:
        make: the DataLoader's class.
        ignored: what is left out of texts; by default what feedmill adds about the sample.
    """
    torch.manual_seed(3)
    random.seed(4)
    found, iterator = [], iter(make(dataset, batch_size=3, num_workers=n_workers))
    for _ in range(len(dataset) // 3 + 2):
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            last = str(error).splitlines()[-1]
            found.append((type(error).__name__, re.sub(ignored, "", last)))
    return found, torch.rand(1), random.random()
