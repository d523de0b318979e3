"""Helpers that the tests with other libraries share."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import feedmill
import helpers
import pytest
import torch
from torchvision import transforms

N_IMAGES = 24
SIZE = 16

# Options of feedmill.DataLoader that the libraries do not know.
OPTIONS = {
    "native": "require", "seed": 7, "threads": 1, "memory_budget": 1 << 28, "reader": "pread",
    "worker_init": "ignore",
}


def need(module):
    """Imports a module, or skips the whole test file; FEEDMILL_NO_SKIP=1 makes that a failure."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("FEEDMILL_NO_SKIP") == "1":
            raise
        return pytest.skip(f"{module} can't be imported: {error}", allow_module_level=True)


def train_set(root):
    """An ImageFolder with random transforms, whose targets are the dataset's indices."""
    return helpers.numbered_folder(root, helpers.compose(
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(helpers.MEAN, helpers.STD),
    ))


def eval_set(root):
    """The same images without random transforms: torch gives the same pixels as feedmill."""
    return helpers.numbered_folder(root, helpers.compose(
        transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.ToTensor()
    ))


def train_loader(dataset, **options):
    """A feedmill.DataLoader with all OPTIONS, shuffled, in batches of 4."""
    return feedmill.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, **OPTIONS, **options})


# Pillow 13 raises an error with this text where timm posterizes to 0 bits.
ZERO_BITS = "bits must be"


def verify(dataset, n_samples, seed=1):
    """Compares that many native samples with the dataset's own. Those that timm can't make end an
    epoch."""
    loader = feedmill.DataLoader(dataset, 20, shuffle=True, native="verify", seed=seed)
    verified = epoch = 0
    while verified < n_samples:
        loader.set_epoch(epoch)
        try:
            for batch in loader:
                verified += len(batch[0])
        except ValueError as error:
            assert ZERO_BITS in str(error)
        epoch += 1
        assert epoch < n_samples
    assert loader.stats().decode.verified_samples >= verified


def options_of(loader):
    return {name: getattr(loader, name) for name in OPTIONS}


def network():
    """A small image classifier that trains quickly."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, N_IMAGES))


def assert_native(loader, n_epochs, n_samples=N_IMAGES):
    """Checks that the loader delivered n_epochs whole epochs, all from the native path."""
    stats = loader.stats()
    assert (stats.path, stats.reasons) == ("native", ())
    assert stats.decode.native_samples == stats.samples == n_epochs * n_samples
    assert stats.waits.torch_batches == stats.decode.fallback_samples == stats.errors == 0


def assert_every_index_once(targets, n_indices=N_IMAGES):
    assert sorted(targets) == list(range(n_indices))


# ---- scripts that do not import feedmill ---------------------------------------------------------

# The beginning of each script. It also prints other output, as real scripts do.
_HEAD = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import conftest, frameworks, torch

def tell(loader, **results):
    stats = loader.stats()
    names = "path", "samples", "native_samples", "torch_batches", "host_wait_ns"
    results.update({{name: stats.flat()[name] for name in names}}, reasons=stats.reasons)
    print("TOLD", json.dumps({{**results, "explanation": loader.explain()}}))
"""


def run_unchanged(folder, script, *words):
    """Runs a script with `feedmill run`. Returns the results that it passed to tell(), as dicts.

    Args:
        folder: where the script's file is written.
        script: the script's text. It may use frameworks, json, sys, torch, and
            tell(loader, **results), which adds the loader's counters and the text of explain().
        words: the script's arguments.
    """
    path = folder / "script.py"
    path.write_text(_HEAD + script)
    process = subprocess.run(
        [sys.executable, "-m", "feedmill", "run", str(path), *map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = [line.partition("TOLD ") for line in process.stdout.splitlines()]
    return [json.loads(told) for _, tag, told in lines if tag]
