"""Deferred images on torch's path: the same batches, errors and random numbers, and the counters."""

import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import numpy as np
import pytest
import torch
from cpus import needs_handover
from feedmill import _internals
from feedmill.deferred import patches
from feedmill.iterators.verify import VerificationError
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())
METHODS = ("fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver")))


class Photos(Dataset):
    """Files that are opened with Pillow and transformed by code that feedmill does not know."""

    def __init__(self, paths, how="crop"):
        self.paths, self.how = [str(one) for one in paths], how
        self.crop = transforms.RandomResizedCrop(24)
        self.to_tensor = transforms.ToTensor()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        if self.how == "filter":
            image = image.filter(ImageFilter.SMOOTH)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = self.to_tensor(self.crop(image))
        return image + np.random.rand(), index


class Stream(IterableDataset):
    def __init__(self, photos):
        self.photos = photos

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        step = info.num_workers if info else 1
        yield from (self.photos[i] for i in range(info.id if info else 0, len(self.photos), step))


class Unrepeatable(Photos):
    def __init__(self, paths):
        super().__init__(paths)
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index):
        image, _ = super().__getitem__(index)
        return image + self.generator.random()


class Sly(Photos):
    """Its samples differ with deferred images."""

    def __getitem__(self, index):
        deferring = torch.tensor(float(patches.is_deferring()))
        return deferring if index == 5 else super().__getitem__(index)[0].sum()


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return helpers.save_jpegs(tmp_path_factory.mktemp("photos"), 12, 60, 48)


def seed_all():
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)


def epochs(kind, dataset, n=2, **options):
    seed_all()
    loader = kind(dataset, batch_size=4, **options)
    batches = [batch for _ in range(n) for batch in loader]
    return loader, batches, (torch.rand(3), random.random(), np.random.rand())


def assert_same_epochs(dataset, **options):
    _, wanted, numbers = epochs(TorchDataLoader, dataset, **options)
    loader, got, own_numbers = epochs(feedmill.DataLoader, dataset, **options)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    assert torch.equal(numbers[0], own_numbers[0]) and numbers[1:] == own_numbers[1:]
    assert loader.stats().path == "torch"
    return loader


# ---- the same batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("how", ["crop", "filter"])
def test_batches_are_those_of_torch(paths, n_workers, how):
    loader = assert_same_epochs(Photos(paths, how), num_workers=n_workers, shuffle=True)
    assert loader.stats().deferred.images == 2 * len(paths)


@pytest.mark.parametrize("method", METHODS)
def test_workers_may_be_started_in_any_way(paths, method):
    loader = assert_same_epochs(
        Photos(paths), num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    assert loader.stats().deferred.images == 2 * len(paths)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_streams_are_deferred(paths, n_workers):
    loader = assert_same_epochs(Stream(Photos(paths)), num_workers=n_workers)
    assert loader.stats().deferred.images == 2 * len(paths)


def test_samples_without_batches_are_deferred(paths):
    seed_all()
    loader = feedmill.DataLoader(Photos(paths), batch_size=None)
    assert len(list(loader)) == loader.stats().deferred.images == len(paths)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_are_those_of_torch(paths, tmp_path, n_workers):
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(paths[0].read_bytes()[:-300])
    dataset = Photos([*paths[:3], damaged])
    texts = []
    for kind in (TorchDataLoader, feedmill.DataLoader):
        with pytest.raises(OSError, match="truncated") as caught:
            list(kind(dataset, batch_size=4, num_workers=n_workers))
        texts.append(str(caught.value).splitlines()[-1])
        traceback.clear_frames(caught.tb)  # see helpers.take()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_after_an_error_without_the_garbage_collector(tmp_path, persistent):
    before = set(multiprocessing.active_children())
    gc.collect()
    gc.disable()
    try:
        loader = feedmill.DataLoader(Photos([tmp_path / "missing.jpg"]), num_workers=2,
                                     persistent_workers=persistent)
        try:
            next(iter(loader))
        except FileNotFoundError as error:
            assert "_next_data" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        else:
            raise AssertionError("the error is lost")
        del loader
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


# ---- where it applies ----------------------------------------------------------------------------


def test_nothing_is_deferred_between_batches(paths):
    for _ in feedmill.DataLoader(Photos(paths), batch_size=4):
        assert not patches.is_deferring()
        with Image.open(paths[0]) as image:
            image.load()
            assert type(vars(image)[patches._SLOT]) is not patches.DeferredCore


def test_an_error_ends_deferring(paths, tmp_path):
    iterator = iter(feedmill.DataLoader(Photos([tmp_path / "missing.jpg"])))
    with pytest.raises(FileNotFoundError):
        next(iterator)
    assert not patches.is_deferring()


def test_plain_loaders_stay_torchs(paths):
    loader = feedmill.DataLoader(Sly(paths), batch_size=12, num_workers=1, native="off")
    assert next(iter(loader))[5] == 1
    for n_workers in (0, 1):
        plain = TorchDataLoader(Sly(paths), batch_size=12, num_workers=n_workers)
        assert next(iter(plain))[5] == 0
        loader = feedmill.DataLoader(
            Sly(paths), batch_size=12, num_workers=n_workers, deferred="off"
        )
        assert next(iter(loader))[5] == 0


def test_the_environment_switches_it_off(paths, monkeypatch):
    monkeypatch.setenv("FEEDMILL_DEFERRED", "0")
    for n_workers in (0, 1):
        loader = assert_same_epochs(Photos(paths), num_workers=n_workers)
        assert loader.stats().deferred.images == 0
    assert "FEEDMILL_DEFERRED" in loader.explain()
    with feedmill.deferred_images():
        assert not patches.is_deferring()


def test_options_are_checked(paths):
    with pytest.raises(ValueError, match="deferred is 'always'"):
        feedmill.DataLoader(Photos(paths), deferred="always")


class Batches:
    """A loader that is not torch's."""

    def __init__(self, photos):
        self.photos = photos

    def __iter__(self):
        return (self.photos[i] for i in range(len(self.photos)))


def test_watched_loaders_are_deferred_if_asked_for(paths):
    loader = Batches(Sly(paths))
    assert list(feedmill.watch(loader))[5] == 0
    watched = feedmill.watch(loader, deferred="auto")
    assert list(watched)[5] == list(pickle.loads(pickle.dumps(watched)))[5] == 1
    assert not patches.is_deferring()
    forking = TorchDataLoader(Sly(paths), batch_size=12, num_workers=1)
    assert next(iter(feedmill.watch(forking, deferred="auto")))[5] == 1
    with pytest.raises(ValueError, match="deferred is 'on'"):
        feedmill.watch(loader, deferred="on")


# ---- verify --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [0, 2])
def test_verify_finds_nothing_where_all_is_equal(paths, n_workers):
    loader = assert_same_epochs_verified(Photos(paths), n_workers)
    assert loader.stats().deferred.verified == 2 * len(paths)
    assert "24 samples, all equal" in loader.report()


def assert_same_epochs_verified(dataset, n_workers):
    _, wanted, _ = epochs(TorchDataLoader, dataset, num_workers=n_workers)
    loader, got, _ = epochs(
        feedmill.DataLoader, dataset, num_workers=n_workers, deferred="verify"
    )
    assert all(torch.equal(a[0], b[0]) for a, b in zip(got, wanted, strict=True))
    return loader


@pytest.mark.parametrize("n_workers", [0, 1])
def test_verify_names_the_sample_that_differs(paths, n_workers):
    loader = feedmill.DataLoader(
        Sly(paths), batch_size=4, num_workers=n_workers, deferred="verify", native="off"
    )
    with pytest.raises(VerificationError, match="index 5: the dataset's result differs") as caught:
        list(loader)
    if not n_workers:
        assert (caught.value.index, caught.value.op) == (5, "deferred")


def test_verify_says_when_it_cannot_compare(paths):
    loader = feedmill.DataLoader(Unrepeatable(paths), batch_size=4, deferred="verify")
    with pytest.raises(VerificationError, match="differently each time"):
        list(loader)


def test_verify_passes_errors_on(paths, tmp_path):
    loader = feedmill.DataLoader(Photos([tmp_path / "missing.jpg"]), deferred="verify")
    with pytest.raises(FileNotFoundError):
        list(loader)


def test_streams_cannot_be_verified(paths):
    loader = feedmill.DataLoader(Stream(Photos(paths)), batch_size=4, deferred="verify")
    with pytest.raises(ValueError, match="IterableDataset"):
        iter(loader)


# ---- what is counted and said --------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [0, 2])
def test_images_are_counted(paths, tmp_path, n_workers):
    bare = helpers.save_bare_jpeg(tmp_path / "bare.jpg", 50, 40)
    loader = feedmill.DataLoader(
        Photos([*paths, bare], "filter"), batch_size=4, num_workers=n_workers
    )
    list(loader)
    before = loader.stats()
    list(loader)
    one = (loader.stats() - before).deferred
    assert one.images + one.ordinary == len(paths) + 1
    assert one.whole >= len(paths) and one.whole_ns > 0
    assert one.endings.startswith("filter ")
    assert "images: " in loader.report() and "ordinary images were needed for: filter" in (
        loader.report()
    )


def test_counters_of_live_workers_are_seen(paths):
    loader = feedmill.DataLoader(Photos(paths), batch_size=1, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().deferred.images > 0
    del iterator
    list(loader)
    assert loader.stats().deferred.images > len(paths)
    assert not loader._feedmill.deferred_counters._workers


def test_explain_says_whether_images_are_deferred(paths):
    assert "decoded only as far as they are used" in feedmill.DataLoader(Photos(paths)).explain()
    loader = feedmill.DataLoader(Photos(paths), deferred="off")
    assert "images are not deferred: deferred='off'" in loader.explain()


@needs_handover
def test_explain_says_why_workers_send_as_torch_does(paths):
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        line = "workers send batches as torch does: the sharing strategy is file_system"
        assert line in feedmill.DataLoader(Photos(paths), num_workers=1).explain()
        for options in ({"num_workers": 0}, {"num_workers": 1, "deferred": "off"}):
            assert line not in feedmill.DataLoader(Photos(paths), **options).explain()
    finally:
        torch.multiprocessing.set_sharing_strategy("file_descriptor")


def test_explain_says_that_workers_are_unknown(paths, monkeypatch):
    monkeypatch.setattr(_internals, "worker_loop", None)
    text = feedmill.DataLoader(Photos(paths)).explain()
    assert "images are not deferred: feedmill does not know how this torch starts" in text


def test_loaders_can_be_pickled_and_copied(paths):
    loader = feedmill.DataLoader(Photos(paths), batch_size=4, deferred="off")
    assert pickle.loads(pickle.dumps(loader)).deferred == "off"


def test_pillow_may_be_imported_late(paths):
    script = f"""
        import multiprocessing, feedmill, torch
        multiprocessing.set_start_method("fork")  # the class can't be pickled
        class Photos:
            def __len__(self): return 6
            def __getitem__(self, index):
                from PIL import Image
                with Image.open({str(paths[0])!r}) as image:
                    return sum(image.crop((0, 0, 9, 9)).tobytes())
        for n_workers in (0, 1):
            loader = feedmill.DataLoader(Photos(), num_workers=1 - n_workers)
            list(loader)
            print(loader.stats().deferred.images)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["5", "5"]


def test_replaced_functions_of_pillow_switch_it_off(paths):
    script = f"""
        from PIL import JpegImagePlugin
        load = JpegImagePlugin.JpegImageFile.load
        JpegImagePlugin.JpegImageFile.load = lambda self: load(self)
        mine = JpegImagePlugin.JpegImageFile.load
        import feedmill
        class Photos:
            def __len__(self): return 1
            def __getitem__(self, index):
                from PIL import Image
                return Image.open({str(paths[0])!r}).convert("RGB").size
        loader = feedmill.DataLoader(Photos())
        print(list(loader))
        print(loader.explain())
        assert JpegImagePlugin.JpegImageFile.load is mine
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True,
        env=dict(os.environ),
    )
    assert not done.returncode, done.stderr
    assert "has been replaced" in done.stdout


# ---- several loaders at once ---------------------------------------------------------------------


class Sampler:
    """Batches of indices that are found with another loader."""

    def __init__(self, kind, paths, n_workers):
        self.kind, self.paths, self.n_workers = kind, paths, n_workers

    def __len__(self):
        return len(self.paths) // 4

    def __iter__(self):
        loader = self.kind(Photos(self.paths), num_workers=self.n_workers, batch_size=6)
        self.n_batches = len(list(loader))
        indices = list(range(len(self.paths)))
        yield from (indices[i : i + 4] for i in range(0, len(indices), 4))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [TorchDataLoader, feedmill.DataLoader])
def test_samplers_may_use_loaders(paths, kind, method):
    sampler = Sampler(kind, paths, 2)
    loader = feedmill.DataLoader(
        Photos(paths), batch_sampler=sampler, num_workers=1, multiprocessing_context=method
    )
    assert len(list(loader)) == 3 and sampler.n_batches == 2
    assert loader.stats().deferred.images == len(paths)
    assert _internals.worker_loop is sys.modules[_internals._WORKER]._worker_loop


class Waiting(Photos):
    """Its worker processes start when another thread's have ended."""

    began, may_go_on = threading.Event(), threading.Event()

    def __getstate__(self):
        self.began.set()
        assert self.may_go_on.wait(600)
        return self.__dict__


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_other_threads_get_loaders_of_torch_meanwhile(paths, method):
    Waiting.began.clear()
    Waiting.may_go_on.clear()
    loader = feedmill.DataLoader(
        Waiting(paths), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    got = []
    thread = threading.Thread(target=lambda: got.extend(loader))
    thread.start()
    try:
        assert Waiting.began.wait(600)
        plain = TorchDataLoader(
            Sly(paths), batch_size=12, num_workers=2, multiprocessing_context=method
        )
        ours = feedmill.DataLoader(
            Sly(paths), batch_size=12, num_workers=1, native="off", multiprocessing_context=method
        )
        assert (next(iter(plain))[5], next(iter(ours))[5]) == (0, 1)
    finally:
        Waiting.may_go_on.set()
        thread.join()
    assert len(got) == 3
    assert _internals.worker_loop is sys.modules[_internals._WORKER]._worker_loop


class InThreads(Sly):
    """Its samples are made by threads of the worker."""

    def __getitem__(self, index):
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().__getitem__, index).result()


def test_verify_compares_what_threads_of_a_worker_make(paths):
    loader = feedmill.DataLoader(
        InThreads(paths), batch_size=4, num_workers=1, deferred="verify", native="off"
    )
    with pytest.raises(VerificationError, match="index 5: the dataset's result differs"):
        list(loader)
