"""examples/elastic_training.py under torchrun, with gloo: other numbers of processes, a process
that is killed, and uneven shards."""

import json
import sys

import helpers
import pytest
from test_examples import EXAMPLES, SMALL, finish, losses, start

pytestmark = pytest.mark.slow
N_IMAGES = 23

# Notes each batch that a loader delivers, and kills the process at one of them. Imported by each
# process of torchrun, as its folder is on PYTHONPATH through FEEDMILL_TESTS.
RECORDER = """
import json, os, signal, sys, zlib
sys.path.insert(0, os.environ["FEEDMILL_TESTS"])
import conftest, feedmill, runpy

class Recording(feedmill.DataLoader):
    def __iter__(self):
        rank = int(os.environ["RANK"])
        for images, targets in super().__iter__():
            state = self.state_dict()
            place = state["position"]
            keys = [[int(target), zlib.crc32(image.numpy().tobytes())]
                    for image, target in zip(images, targets)]
            line = json.dumps([state["sampler_epoch"], place["batches"], rank, keys])
            with open(f"record{rank}", "a") as file:
                file.write(line + "\\n")
            kill = os.environ.get("KILL", "") == f"{rank} {state['sampler_epoch']} {place['batches']}"
            if kill and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            yield images, targets

feedmill.DataLoader = Recording
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A class for each image, so that targets number the samples."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(N_IMAGES):
        helpers.save_jpeg(root / f"{i:02}" / "image.jpg", 40 + i, 60 - i, seed=i)
    return root


def train(photos, folder, n_processes, monkeypatch, *words, kill=""):
    """Runs the example. Returns (its output, (epoch, step) -> [the keys of each rank])."""
    monkeypatch.setattr(sys.modules["test_examples"], "RUNNER", RECORDER)
    monkeypatch.setenv("KILL", kill)
    before = {path: path.read_text() for path in folder.glob("record*")}
    out = finish(start(
        EXAMPLES / "elastic_training.py", photos, "--arch", SMALL, "--size", 64, "--batch-size", 4,
        "--workers", 0, "--seed", 3, "--every", 1, *words, folder=folder, torchrun=n_processes,
        restarts=1,
    ))
    found = {}
    for rank in range(n_processes):
        path = folder / f"record{rank}"
        for line in path.read_text().removeprefix(before.get(path, "")).splitlines():
            epoch, step, rank, keys = json.loads(line)
            known = found.setdefault((epoch, step), {}).setdefault(rank, keys)
            assert known == keys, "a repeated step has other samples"
    return out, {place: [ranks[rank] for rank in sorted(ranks)]
                 for place, ranks in sorted(found.items())}


def merged(steps):
    """place -> the keys of all ranks together, in order."""
    return {place: sorted(map(tuple, (key for keys in ranks for key in keys)))
            for place, ranks in steps.items()}


def test_other_processes_and_a_killed_one(photos, tmp_path, monkeypatch):
    _, whole = train(photos, tmp_path / "whole", 1, monkeypatch, "--epochs", 2)
    folder = tmp_path / "parts"
    folder.mkdir()
    _, first = train(photos, folder, 4, monkeypatch, "--epochs", 2, "--stop-after", 2)
    out, second = train(photos, folder, 2, monkeypatch, "--epochs", 2, kill="1 0 5")
    assert "training done" in out and losses(out)
    assert min(second) == (0, 3) and max(second) == (1, 6)
    whole, parts = merged(whole), {**merged(first), **merged(second)}
    padded = [(epoch, 6) for epoch in range(2)]  # 23 samples: 2 ranks add the epoch's first one
    for place in padded:
        extra = set(parts[place]) - set(whole[place])
        assert len(extra) == 1 and extra <= set(whole[place[0], 1])
        parts[place] = whole[place]
    assert parts == whole


def test_uneven_shards_with_join(photos, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    _, first = train(photos, folder, 2, monkeypatch, "--epochs", 1, "--uneven")
    out, second = train(photos, folder, 2, monkeypatch, "--epochs", 2, "--uneven")
    assert "training done" in out
    for epoch, steps in enumerate((first, second)):
        assert {place[0] for place in steps} == {epoch}
        keys = [key for ranks in steps.values() for of_rank in ranks for key in of_rank]
        assert sorted(target for target, _ in keys) == list(range(N_IMAGES))
        assert [len(of_rank) for of_rank in steps[epoch, 6]] == [2, 1]
    assert first[0, 1] != second[1, 1]
