"""States in checkpoints of torch.distributed.checkpoint, by its Stateful protocol."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys

import feedmill
import helpers
import pytest
from test_resume import RANDOM, samples
from torch.utils.data import DistributedSampler

dcp = pytest.importorskip("torch.distributed.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about a missing process group


class Saved:
    """As in docs/resuming.md."""

    def __init__(self, loader):
        self.loader = loader

    def state_dict(self):
        return {"state": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict):
        self.loader.load_state_dict(json.loads(state_dict["state"]))


def loader_of(folder, n_ranks=1, rank=0, batch_size=4):
    dataset = helpers.numbered_folder(folder, helpers.compose(*RANDOM))
    sampler = DistributedSampler(dataset, n_ranks, rank, seed=2)
    return feedmill.DataLoader(
        dataset, batch_size=batch_size, sampler=sampler, seed=1, threads=1, native="require"
    )


def test_another_number_of_ranks(small_images, tmp_path):
    whole = samples(loader_of(small_images))
    got = []
    for n_ranks, n_steps in ((8, 2), (2, 3), (5, None)):
        loaders = [loader_of(small_images, n_ranks, rank, batch_size=1) for rank in range(n_ranks)]
        steps = []
        for loader in loaders:
            if got:
                dcp.load({"loader": Saved(loader)}, checkpoint_id=tmp_path / f"{len(got)}")
            steps.append(samples(itertools.islice(iter(loader), n_steps)))
        got += [one for step in zip(*steps) for one in step]
        dcp.save({"loader": Saved(loaders[-1])}, checkpoint_id=tmp_path / f"{len(got)}")
    assert got[:40] == whole and len(got) == 42 and got[40:] == [*whole[:2]]


_TRAINING = """
import os, sys, json, warnings
sys.path.insert(0, {tests!r})
warnings.simplefilter("ignore")
import conftest
from test_resume_dcp import Saved, dcp, loader_of, samples

images, folder = sys.argv[1:]
loader = loader_of(images)
done = {{"loader": Saved(loader), "done": "[]"}}
latest = os.path.join(folder, "latest")
if os.path.exists(latest):
    dcp.load(done, checkpoint_id=os.path.realpath(latest))
got = json.loads(done["done"])
while loader.state_dict()["epoch"] < 2:
    loader.sampler.set_epoch(loader.state_dict()["epoch"])
    for batch in loader:
        got += samples([batch])
        name = f"{{len(got)}}-{{os.getpid()}}"
        dcp.save(
            {{"loader": Saved(loader), "done": json.dumps(got)}},
            checkpoint_id=os.path.join(folder, name),
        )
        os.symlink(name, latest + ".new")
        os.replace(latest + ".new", latest)
        print(len(got), flush=True)
        sys.stdin.readline()
print(json.dumps(got))
"""


@pytest.mark.slow
def test_a_killed_training(small_images, tmp_path):
    """SIGKILL at random steps; each process loads the latest checkpoint."""
    script = _TRAINING.format(tests=os.path.dirname(os.path.abspath(__file__)))
    picks = random.Random(1)
    results = []
    for n_kills in (0, 4):
        folder = tmp_path / f"{n_kills}"
        folder.mkdir()
        for run in range(n_kills + 1):
            process = subprocess.Popen(
                [sys.executable, "-c", script, small_images, folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            left = picks.randrange(1, 5) if run < n_kills else 1000
            line = ""
            for line in process.stdout:
                left -= 1
                if not left:
                    process.send_signal(signal.SIGKILL)
                    break
                if not line.startswith("["):
                    process.stdin.write("\n")
                    process.stdin.flush()
            process.stdin.close()
            process.stdout.close()
            assert process.wait() == (-signal.SIGKILL if run < n_kills else 0)
        results.append(json.loads(line))
    assert len(results[0]) == 80 and results[0] == results[1]
