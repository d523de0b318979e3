"""Random scripts with torch's random numbers, the default: each observes the same batches, errors
and generators' states with feedmill's DataLoader as with torch's.

FEEDMILL_RNG_SCRIPTS scripts are run (default: 6), from number FEEDMILL_RNG_SEED on (default: 0).
"""

import faulthandler
import itertools
import os
import random
import signal
import traceback

import feedmill
import numpy as np
import pytest
import torch
from helpers import pixels, save_jpeg
from PIL import Image
from rng_scripts import script
from test_rng_torch import is_equal
from test_rng_torch_calling_process import seed, states
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder

N_SCRIPTS = int(os.environ.get("FEEDMILL_RNG_SCRIPTS", "6"))
FIRST = int(os.environ.get("FEEDMILL_RNG_SEED", "0"))
# Starting torch's workers is slow: by default, only the first script that has any is run.
HAS_FEW_WORKERS = "FEEDMILL_RNG_SCRIPTS" not in os.environ
SIZES = ((48, 40), (32, 33), (33, 50), (50, 31), (47, 49))
LONGEST_S = 600  # only so that a script that hangs ends

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders by name, of 20 small images each, some of which Pillow decodes; "bad" also has some
    that can't be decoded."""
    found = {}
    for name in ("good", "bad"):
        found[name] = root = tmp_path_factory.mktemp(name)
        for i in range(20):
            path = root / "ab"[i % 2] / f"{i:02}.jpg"
            save_jpeg(path, *SIZES[i % len(SIZES)], seed=i, mode={7: "L", 12: "CMYK"}.get(i, "RGB"),
                      progressive=i % 9 == 4)
            content = path.read_bytes()
            if i == 5:
                path.unlink()
                Image.fromarray(pixels(*SIZES[0], seed=i)).save(path.with_suffix(".png"))
            elif name == "bad" and i in (1, 6, 11, 13):
                path.write_bytes({1: content[: len(content) // 2], 6: b"", 11: b"no image",
                                  13: content[:30]}[i])
    return found


def transcript(kind, script, root, **more):
    """All that the script sees: batches, errors, what it draws, the generators' states. And the
    loader."""
    dataset = ImageFolder(root, script.make_transform())
    # The first files by name are of both classes, and in "bad" some of them are damaged.
    order = sorted(range(len(dataset)), key=lambda i: os.path.basename(dataset.samples[i][0]))
    dataset = Subset(dataset, order[: script.n_images])
    seed(script.seed)
    options = script.loader_options()
    loader = kind(dataset, **options, **more)
    found = []
    for epoch in range(script.epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        found.append(("states at the beginning of epoch", epoch, states()))
        number = 0
        while script.breaks_after is None or number < script.breaks_after:
            try:
                found.append(("batch", epoch, number, next(iterator)))
            except StopIteration:
                found.append(("end of epoch", epoch, number))
                break
            except Exception as error:
                # A worker's error says its process and shows a traceback.
                text = str(error).rstrip().rsplit("\n", 1)[-1].split(" [")[0]
                found.append(("batch", epoch, number, type(error).__name__, text))
            found.append(("states behind batch", epoch, number, states()))
            number += 1
            if script.draws_between and number % script.draws_between == 0:
                draws = [torch.randn(3), random.gauss(0, 1), np.random.rand(2).tolist()]
                found.append(("draws behind batch", epoch, number, draws))
        del iterator
    if "generator" in options:
        found.append(("states of the loader's generator", options["generator"].get_state()))
    found.append(("states at the end", states()))
    return found, loader


def first_difference(wanted, got):
    for one, other in zip(wanted, got):
        if not is_equal(one, other):
            return f"torch's DataLoader: {str(one)[:500]}\nfeedmill's DataLoader: {str(other)[:500]}"
    return "" if len(wanted) == len(got) else f"{len(wanted)} and {len(got)} observations"


def _time_is_up(*_):
    raise AssertionError(f"the script hangs: it took more than {LONGEST_S} s")


def run(script, root):
    """Runs the script with both loaders.

    Returns:
        (path that feedmill's loader took, what differed or "").
    """
    old = signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(LONGEST_S)
    path = "unknown"
    try:
        wanted, _ = transcript(DataLoader, script, root)
        got, loader = transcript(feedmill.DataLoader, script, root, native="auto")
        path, difference = loader.stats().path, first_difference(wanted, got)
    except Exception:
        difference = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    if difference:
        difference += (
            f"\n{script}\n  path: {path}\n"
            f"Repeat it with: FEEDMILL_RNG_SCRIPTS=1 FEEDMILL_RNG_SEED={script.number} "
            "python -m pytest tests/python/test_rng_torch_random.py\n"
        )
    return path, difference


def numbers():
    chosen, has_workers = [], False
    for number in itertools.count(FIRST):
        if len(chosen) == N_SCRIPTS:
            return chosen
        if script(number).options["num_workers"] and HAS_FEW_WORKERS:
            if has_workers:
                continue
            has_workers = True
        chosen.append(number)


@pytest.mark.parametrize("part", [numbers()[i : i + 50] for i in range(0, N_SCRIPTS, 50)],
                         ids=lambda part: f"{part[0]}-{part[-1]}")
def test_random_scripts_observe_the_same(roots, part):
    # The alarm ends a script that hangs. There is no limit for all scripts together.
    faulthandler.cancel_dump_traceback_later()
    scripts = [script(number) for number in part]
    paths, differences = zip(*(run(one, roots[one.folder]) for one in scripts))
    n_native = paths.count("native")
    print(f"{n_native} of {len(paths)} scripts ran natively")
    if any(differences):
        pytest.fail("\n".join(filter(None, differences)), pytrace=False)
    if len(paths) >= 6:  # fewer say nothing about the share
        assert 2 * n_native >= len(paths)
