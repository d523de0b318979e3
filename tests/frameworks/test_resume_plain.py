"""A training loop of the script's own that is killed at random moments: files, packs and data in
memory, with 1 to 4 threads and both readers. `make test-kills` kills it 200 times."""

import json
import os

import feedmill
import frameworks
import killed
import pytest
import torch

N_EPOCHS = 2
KINDS = ("files", "pack", "memory")
N_KILLS = int(os.environ.get("FEEDMILL_PLAIN_KILLS", "0"))
pytestmark = pytest.mark.skipif(
    not N_KILLS, reason="see make test-kills; test_resume.py kills fewer processes"
)


def dataset_of(kind, images, pack):
    if kind == "files":
        return frameworks.train_set(images)
    if kind == "pack":
        return feedmill.Pack(pack, frameworks.train_set(images).transform)
    pixels = torch.arange(24 * 48.0).reshape(24, 3, 4, 4)
    return torch.utils.data.TensorDataset(pixels, torch.arange(24))


def train(folder, options, step):
    dataset = dataset_of(options.pop("kind"), options.pop("images"), options.pop("pack"))
    generator = torch.Generator().manual_seed(11)
    loader = frameworks.train_loader(dataset, generator=generator, **options)
    checkpoint, done = folder / "checkpoint", []
    if checkpoint.exists():
        done, state = json.loads(checkpoint.read_text())
        loader.load_state_dict(state)
    while loader.state_dict()["epoch"] < N_EPOCHS:
        for images, targets in loader:
            done += killed.sample_keys(images, targets)
            with killed.replacing(checkpoint) as path:
                path.write_text(json.dumps([done, loader.state_dict()]))
            step()
    return done


@pytest.fixture(scope="module")
def pack(images, tmp_path_factory):
    from feedmill.cli.cli import main

    folder = tmp_path_factory.mktemp("packs") / "pack"
    assert not main(["pack", str(images), str(folder)])
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training(images, pack, tmp_path, kind):
    def options(run):
        return {
            "kind": kind, "images": str(images), "pack": str(pack), "threads": 1 + run % 4,
            "reader": ["auto", "pread"][run // 2 % 2], "num_workers": run % 3,
        }

    n_kills = -(-N_KILLS // len(KINDS))
    whole = killed.check(__name__, tmp_path, 12, options, n_kills, seed=KINDS.index(kind))
    assert len(whole) == N_EPOCHS * 24
    if kind != "pack":  # whose targets are classes
        for epoch in (whole[:24], whole[24:]):
            frameworks.assert_every_index_once([target for target, _ in epoch])
