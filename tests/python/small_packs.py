"""A small image folder, its pack in a folder, and the command, for tests of other targets."""

import helpers
from feedmill.cli import cli


def make_source(folder):
    """Saves 18 images of two classes; returns the folder."""
    for name in "ab":
        helpers.save_jpegs(folder / name, 9, 60, 50)
    return folder


def make_local(source, folder):
    """Packs the source into a new folder, in several shards; returns the folder."""
    assert pack(source, folder) == 0
    return folder


def pack(*words):
    """Runs `feedmill pack` with small shards; returns its exit status."""
    return cli.main(["pack", *map(str, words), "--shard-size", "10K"])
