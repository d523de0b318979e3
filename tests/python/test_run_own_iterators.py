"""The command `feedmill run` with DataLoader classes that do not call torch's constructor or make
iterators of their own, such as torchdata's StatefulDataLoader."""

import json

import pytest
from test_run import HERE, finish, folder, prepared, under_run, write  # noqa: F401

SCRIPT = """
import sys
sys.path.append({here!r})
import conftest  # an importable torchvision
import feedmill, pickle, torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
{library}

steps = [transforms.Resize((8, 8)), transforms.PILToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))


def is_replaced():
    return feedmill.DataLoader in Loader.__mro__


def targets(iterable):
    return [target for _, batch in iterable for target in batch.tolist()]


wanted = [target for _, target in dataset.samples]
for n_workers in (0, 2):
    loader = Loader(dataset, batch_size=8, num_workers=n_workers)  # the line that the report names
    for _ in range(2):
        assert targets(loader) == wanted
    if is_replaced():
        stats = loader.stats()
        assert (stats.path, stats.epochs, stats.batches) == ("torch", 2, 10)
        assert stats.reasons == ({kind!r} + " has an iterator of its own",), stats.reasons
        assert stats.waits.data_wait_ns > 0 and len(stats.steps) == 10
        assert "has an iterator of its own" in loader.report(), loader.report()
        assert {kind!r} + " did not call the constructor of DataLoader" in loader.explain()
persistent = Loader(dataset, batch_size=8, num_workers=1, persistent_workers=True)
assert [len(targets(persistent)) for _ in range(3)] == [40] * 3
if is_replaced():
    assert (persistent.stats().epochs, persistent.stats().batches) == (3, 15)
{more}
"""
TORCHDATA = "from torchdata.stateful_dataloader import StatefulDataLoader as Loader"
RESUMED = """
for n_workers in (0, 2):
    begun = Loader(dataset, batch_size=8, num_workers=n_workers)
    iterator = iter(begun)
    first = [next(iterator) for _ in range(2)]
    state = begun.state_dict()
    resumed = Loader(dataset, batch_size=8, num_workers=n_workers)
    resumed.load_state_dict(state)
    assert targets(first) + targets(resumed) == wanted
    assert resumed.state_dict() is not None
"""
OWN = """
from library import Loader
"""
LIBRARY = """
from torch.utils.data import DataLoader
from torch.utils.data import dataloader

class Single(dataloader._SingleProcessDataLoaderIter):
    pass

class Multi(dataloader._MultiProcessingDataLoaderIter):
    pass

class Loader(DataLoader):
    "Leaves out torch's constructor, but for what it sets."
    def __init__(self, dataset, **options):
        made = vars(torchs(dataset, **options))
        self.__dict__.update({k: v for k, v in made.items() if not k.startswith("_feedmill")})

    def _get_iterator(self):
        return Single(self) if self.num_workers == 0 else Multi(self)

torchs = DataLoader.__mro__[[kind.__module__ for kind in DataLoader.__mro__].index(
    "torch.utils.data.dataloader")]
"""


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def line_number(text, part):
    return next(k for k, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.slow
@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("which", ["torchdata", "own"])
def test_waits_of_such_loaders_are_reported(folder, small_images, which, watch):  # noqa: F811
    if which == "torchdata":
        pytest.importorskip("torchdata.stateful_dataloader")
        kind = "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader"
        library, more = TORCHDATA, RESUMED
    else:
        write("library.py", LIBRARY)
        kind, library, more = "library.Loader", OWN, ""
    text = SCRIPT.format(here=str(HERE), library=library, kind=kind, more=more)
    write("train.py", text)
    words = ["--watch"] if watch else []
    got = under_run(*words, "--report", "report", "train.py", small_images)
    assert got.returncode == 0, got.stderr
    reports = {line["place"]: line for line in lines_of(folder / "report")}
    place = f"train.py:{line_number(text, 'the line that the report names')}"
    found = [line for name, line in reports.items() if name.endswith(place)]
    assert len(found) == 1, list(reports)
    assert (found[0]["path"], found[0]["batches"], found[0]["epochs"], found[0]["loaders"]) == (
        "watched" if watch else "torch", 20, 4, 2
    )
    assert found[0]["reasons"] == ([] if watch else [f"{kind} has an iterator of its own"])


@pytest.mark.slow
def test_native_require_refuses_such_loaders(folder, small_images):  # noqa: F811
    write("library.py", LIBRARY)
    text = SCRIPT.format(here=str(HERE), library=OWN, kind="library.Loader", more="")
    write("train.py", text)
    got = under_run("--native", "require", "train.py", small_images)
    assert got.returncode == 1
    assert ("RuntimeError: native='require', but the native path can't be taken: library.Loader "
            "has an iterator of its own") in got.stderr


@pytest.mark.slow
def test_the_log_has_the_steps_of_such_loaders(folder, small_images):  # noqa: F811
    write("library.py", LIBRARY)
    text = SCRIPT.format(here=str(HERE), library=OWN, kind="library.Loader", more="")
    write("train.py", text)
    command, environment = prepared("train.py", small_images)
    got = finish(command, environment | {"FEEDMILL_LOG": str(folder / "log")})
    assert got.returncode == 0, got.stderr
    lines = lines_of(folder / "log")
    assert sum(line["type"] == "step" for line in lines) == 35
    assert {line["path"] for line in lines if line["type"] == "run"} == {"torch"}


HYBRID = """
import sys
sys.path.append({here!r})
import conftest  # an importable torchvision
import feedmill, torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

steps = [lambda image: image.copy(), transforms.Resize((8, 8)), transforms.PILToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
loader = DataLoader(dataset, batch_size=8)
assert loader.native == "hybrid"
assert [len(targets) for _, targets in loader] == [8] * 5
assert loader.stats().path == "hybrid", loader.explain()
assert DataLoader(dataset, native="off").native == "off"
"""


@pytest.mark.slow
def test_native_hybrid_as_an_option_of_run(folder, small_images):  # noqa: F811
    write("train.py", HYBRID.format(here=str(HERE)))
    got = under_run("--native", "hybrid", "train.py", small_images)
    assert got.returncode == 0, got.stderr
    assert "40 samples in 5 batches decoded natively" in got.stderr or "hybrid" in got.stderr
