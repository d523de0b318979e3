"""The option cache=, which keeps encoded files in memory over the epochs of one DataLoader."""

import pickle

import feedmill
import helpers
import pytest
import torch
from feedmill.engine.cache import budget_bytes
from helpers import native_loader, targets_of


@pytest.mark.parametrize("text, n_bytes", [
    ("ram:8GiB", 8 << 30), ("ram:1.5 GiB", 3 << 29), ("ram:100MB", 10**8), ("ram:64KiB", 1 << 16),
    ("ram:7B", 7), ("ram:2TB", 2 * 10**12), ("ram:0MB", None), ("ram:0.1B", None), ("8GiB", None),
    ("ram:8", None), ("ram:8gib", None), ("ram:-1GB", None), ("ram:1e3MB", None), (1 << 30, None),
    ("ram:", None), ("disk:8GiB", None),
])
def test_sizes(text, n_bytes):
    assert budget_bytes(text) == n_bytes


def test_bad_values_are_refused(numbered):
    with pytest.raises(ValueError, match="cache is '8GiB'; it must be None or .* 'ram:8GiB'"):
        feedmill.DataLoader(numbered, cache="8GiB")
    loader = feedmill.DataLoader(numbered)
    loader.cache = 5
    with pytest.raises(ValueError, match="cache is 5; it must be"):
        iter(loader)
    loader.cache = "ram:8000TiB"
    with pytest.raises(ValueError, match="more than the memory"):
        iter(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("budget", ["ram:12KiB", "ram:30KiB", "ram:8MiB"])
def test_hit_rate_is_the_share_that_fits(numbered, budget, workers):
    loader = native_loader(numbered, batch_size=7, shuffle=True, cache=budget, num_workers=workers)
    images = {}
    for image, targets in loader:
        images.update(zip(targets.tolist(), image))
    first = loader.stats()
    assert first.io.cache_hits == 0 and first.io.cache_misses == 40
    assert 0 < first.io.cache_files <= 40 and 0 < first.io.cache_bytes <= budget_bytes(budget)
    assert (first.io.cache_files == 40) == (budget == "ram:8MiB")
    for _ in range(3):
        for batch, targets in loader:
            for image, target in zip(batch, targets.tolist()):
                helpers.assert_same_image(image, images[target], target)
    later = loader.stats() - first
    assert later.io.cache_hits == 3 * first.io.cache_files
    assert later.io.cache_hit_rate == first.io.cache_files / 40
    assert later.io.opens == 3 * (40 - first.io.cache_files)
    assert loader.stats().io.cache_files == first.io.cache_files


def test_the_cache_outlives_native_loaders(numbered):
    """Files stay cached when an option changes and a new native loader is made."""
    loader = native_loader(numbered, batch_size=8, cache="ram:8MiB")
    targets_of(loader)
    loader.threads = 3
    targets_of(loader)
    one, other = iter(loader), iter(loader)  # two at once
    assert len(list(one)) == len(list(other)) == 5
    assert loader.stats().io.opens == 40 and loader.stats().io.cache_hits == 120
    loader.cache = "ram:9MiB"
    targets_of(loader)
    assert loader.stats().io.opens == 80
    loader.cache = None
    targets_of(loader)
    assert loader.stats().io.opens == 120 and loader.stats().io.cache_misses == 80


def test_a_copied_loader_has_its_own_cache(numbered):
    loader = native_loader(numbered, batch_size=8, cache="ram:8MiB")
    targets_of(loader)
    duplicate = pickle.loads(pickle.dumps(loader))
    assert duplicate.cache == "ram:8MiB"
    targets_of(duplicate)
    assert duplicate.stats().io.opens == 40 and duplicate.stats().io.cache_hits == 0


@pytest.mark.slow
def test_a_forked_process_has_its_own_cache(small_images):
    helpers.run_script("""
import os
numbered = helpers.numbered_folder(sys.argv[1])
loader = feedmill.DataLoader(numbered, batch_size=8, cache="ram:8MiB", native="require")
list(loader)
child = os.fork()
if child == 0:
    list(loader)
    list(loader)
    stats = loader.stats()
    os._exit(0 if (stats.io.opens, stats.io.cache_hits) == (40, 40) else 1)
assert os.waitpid(child, 0)[1] == 0
list(loader)
assert loader.stats().io.opens == 40
""", small_images)


def test_files_for_pillow_are_not_cached(small_images, tmp_path):
    """Only natively decoded files are cached; errors of cached files name them."""
    for i, path in enumerate(sorted(small_images.rglob("*.jpg"))[:6]):
        data = path.read_bytes()
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i}.jpg").write_bytes(data)
    helpers.save_jpeg(tmp_path / "a" / "cmyk.jpg", 20, 20, mode="CMYK")
    dataset = helpers.numbered_folder(tmp_path)
    plain = [batch[0] for batch in torch.utils.data.DataLoader(dataset, batch_size=7)]
    loader = native_loader(dataset, batch_size=7, cache="ram:8MiB")
    for _ in range(3):
        (batch,) = [batch[0] for batch in loader]
        assert torch.equal(batch, plain[0])
    n_native = loader.stats().decode.native_samples // 3
    assert loader.stats().io.cache_files == n_native


def test_the_cache_is_shown_in_explain_and_report(numbered):
    loader = native_loader(numbered, batch_size=8, cache="ram:8MiB")
    assert "cache      ram:8MiB: encoded files" in loader.explain()
    assert "cache " not in loader.report()
    targets_of(loader)
    targets_of(loader)
    assert "40 files in" in loader.report() and "hit rate 50%" in loader.report()
    loader = feedmill.DataLoader(numbered, cache="ram:8MiB", native="off")
    assert "cache= has no effect" in loader.explain()
