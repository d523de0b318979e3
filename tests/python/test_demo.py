"""The command `feedmill demo`: its output and exit status, and what it does with its folder."""

import json
import os
import sys
from functools import partial

import pytest
from feedmill.cli import demo
from feedmill.cli.cli import main
from feedmill.data.images import ImageList
from helpers import save_bare_jpeg, save_jpeg

SHORT = ["--seconds", "0.1", "--batch-size", "8", "--workers", "1"]


def run_demo(capsys, *words):
    status = main(["demo", *map(str, words), *SHORT])
    return status, capsys.readouterr().out


def test_a_folder_of_classes(small_images, capsys):
    status, out = run_demo(capsys, small_images, "--json")
    assert status == 0
    result = json.loads(out)
    assert result["images"] == result["equal_images"] == 40
    assert result["workers"] == 1 and result["batch_size"] == 8
    for name in ("torch", "feedmill"):
        assert result[name]["images_per_s"] > 0 and result[name]["images_per_cpu_s"] > 0
    assert result["speedup"] > 0 and result["speedup_per_cpu"] > 0


def test_the_printed_text(small_images, capsys):
    status, out = run_demo(capsys, small_images)
    assert status == 0
    assert "40 images compared, all equal to torchvision's" in out
    assert "torch's DataLoader" in out and "decoded all images natively" in out
    assert "+from feedmill import DataLoader" in out
    assert str(small_images) in out and "  path       native" not in out
    status, out = run_demo(capsys, small_images, "--report")
    assert status == 0 and "  path       native" in out


def test_images_that_go_through_pillow(tmp_path, capsys):
    save_jpeg(tmp_path / "a.jpg", 40, 30)
    save_bare_jpeg(tmp_path / "b.jpg", 40, 30)
    status, out = run_demo(capsys, tmp_path)
    assert status == 0 and "50.0% of feedmill's images went through Pillow" in out
    assert f"feedmill doctor {tmp_path}" in out


@pytest.mark.parametrize("name", ["plain.jpg", "a/b/deep.jpg"])
def test_folders_with_and_without_classes(tmp_path, capsys, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    save_jpeg(tmp_path / name, 40, 30)
    status, out = run_demo(capsys, tmp_path, "--json")
    assert status == 0 and json.loads(out)["images"] == 1


def test_images_are_made_and_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "_N_CLASSES", 3)
    monkeypatch.setattr(demo, "_N_EACH", 2)
    # Not tempfile.tempdir: workers make sockets there, and hang where the paths are over 107 bytes.
    monkeypatch.setattr(
        demo.tempfile, "TemporaryDirectory", partial(demo.tempfile.TemporaryDirectory, dir=tmp_path)
    )
    status, out = run_demo(capsys)
    assert status == 0
    assert "6 generated images" in out and "6 images compared" in out
    assert not os.listdir(tmp_path)


def test_pixels_that_differ(small_images, monkeypatch, capsys):
    class Lying(ImageList):
        def __getitem__(self, index):
            return super().__getitem__(index - (index > len(self) // 2))

        def feedmill_item(self, index):
            return super().feedmill_item(index)

    dataset_of = demo._dataset

    def lying(folder):
        right = dataset_of(folder)
        return Lying([path for path, _ in right.samples], right.targets, right.transform)

    monkeypatch.setattr(demo, "_dataset", lying)
    status, out = run_demo(capsys, small_images)
    assert status == 1 and "VerificationError" in out


@pytest.mark.parametrize("words, text", [
    (["{empty}"], "contains no images"),
    (["{missing}"], "missing"),
    (["{images}", "--seconds", "0"], "--seconds: must be above 0"),
    (["{images}", "--seconds", "nan"], "--seconds: must be above 0"),
    (["{images}", "--workers", "0"], "--workers"),
])
def test_bad_usage(small_images, tmp_path, capsys, words, text):
    (tmp_path / "empty").mkdir()
    places = {"images": small_images, "empty": tmp_path / "empty", "missing": tmp_path / "missing"}
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *SHORT, *(word.format(**places) for word in words)])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_without_torchvision(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *SHORT])
    assert stopped.value.code == 2
    assert "pip install torchvision" in capsys.readouterr().err


def test_a_torchvision_for_another_torch(tmp_path, monkeypatch, capsys):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('no operator nms')")
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *SHORT])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "RuntimeError: no operator nms" in error and "pip install torchvision" in error


def test_an_image_that_pillow_cannot_load(tmp_path, capsys):
    save_jpeg(tmp_path / "c" / "a.jpg", 40, 30)
    (tmp_path / "c" / "b.jpg").write_bytes(b"no image")
    status, out = run_demo(capsys, tmp_path)
    assert status == 1 and "b.jpg" in out
