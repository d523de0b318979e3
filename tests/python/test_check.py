"""The command ``feedmill check``."""

import json
import re

import helpers
import pytest
from feedmill.cli import check, cli
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    """A folder of forty undamaged images of several formats."""
    for i in range(34):
        helpers.save_jpeg(tmp_path / f"c{i % 3}" / f"{i:02}.jpg", 30 + i, 40, seed=i)
    for name in ("a.png", "b.webp", "c.bmp", "d.gif.png"):
        Image.fromarray(helpers.pixels(20, 30)).save(
            tmp_path / "c0" / name, "GIF" if "gif" in name else None
        )
    helpers.save_jpeg(tmp_path / "plain.jpg", 9, 9)
    helpers.save_bare_jpeg(tmp_path / "bare.jpg", 50, 40)
    (tmp_path / "notes.txt").write_text("no image, and not called one")
    return tmp_path


def spoil(folder):
    """Damages some of the files. Returns a dict: path -> a word of the expected reason."""
    jpeg = (folder / "c0" / "00.jpg").read_bytes()
    png = (folder / "c0" / "a.png").read_bytes()
    webp = (folder / "c0" / "b.webp").read_bytes()
    files = {
        "cut.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "empty.jpg": (b"", "cannot identify"),
        "text.png": (b"no image", "cannot identify"),
        "cut.png": (png[: len(png) // 2], "truncated"),
        "cut.webp": (webp[: len(webp) // 2], ""),
    }
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    (folder / "gone.jpg").symlink_to("nowhere")
    return {str(folder / name): word for name, (_, word) in files.items()} | {
        str(folder / "gone.jpg"): "No such file"
    }


def run(capsys, *words):
    status = cli.main(["check", *map(str, words)])
    return status, capsys.readouterr().out


def test_an_undamaged_folder(capsys, folder):
    status, text = run(capsys, folder)
    counts = re.fullmatch(
        r"(\d+) images: (\d+) decoded natively, (\d+) by Pillow, 0 damaged\n", text
    )
    assert status == 0 and counts, text
    n, n_native, n_pillow = map(int, counts.groups())
    assert n == n_native + n_pillow == 40 and 3 <= n_pillow <= 5


@pytest.mark.parametrize("threads", [1, 3])
def test_damaged_files_are_listed(capsys, folder, threads):
    wanted = spoil(folder)
    # Pillow loads this file without an error.
    doubtful = folder / "c1" / "01.jpg"
    doubtful.write_bytes(doubtful.read_bytes()[:-200] + b"\xff\xd9")
    status, text = run(capsys, folder, "--json", "--threads", threads)
    found = json.loads(text)
    assert status == 1 and found["files"] == 45
    assert set(found["damaged"]) == set(wanted)
    for path, word in wanted.items():
        assert word in found["damaged"][path], (path, found["damaged"][path])
    assert list(found["doubtful"]) == [str(doubtful)]
    status, text = run(capsys, folder)
    assert status == 1 and "6 damaged\ndamaged:\n" in text and "\ndoubtful:\n" in text


def test_progress_counts_every_file(folder):
    spoil(folder)
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    counted = []
    found = check.check_files(paths, 2, counted.append)
    assert sum(counted) == len(paths) == found.files
    assert found.native + found.pillow + len(found.damaged) == len(paths)
    assert check.check_files([], 1).files == 0


def test_a_missing_folder_and_a_folder_without_images(capsys, tmp_path):
    for folder, word in ((tmp_path / "none", "not a folder"), (tmp_path, "contains no images")):
        with pytest.raises(SystemExit) as caught:
            cli.main(["check", str(folder)])
        assert caught.value.code == 2 and word in capsys.readouterr().err
