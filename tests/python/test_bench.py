"""The command `feedmill bench`."""

import json
import subprocess
import sys

import helpers
import pytest
import torch
from feedmill.cli import bench as module
from feedmill.cli import cli
from feedmill.cli.value_table import imagenet_value_table
from feedmill.planner.recognise import recognise
from torchvision import transforms as T


def bench(capsys, *words):
    status = cli.main(["bench", *map(str, words)])
    captured = capsys.readouterr()
    assert status == 0
    return captured.out


def test_json(small_images, capsys):
    result = json.loads(bench(capsys, small_images, "--json", "--epochs", 2, "--batch-size", 16,
                              "--threads", 1, "--size", 32, "--reader", "pread"))
    assert (result["files"], result["images"], result["native_samples"]) == (40, 80, 80)
    assert (result["threads"], result["reader"], result["size"]) == (1, "pread", 32)
    assert result["reader_reason"]
    assert [epoch["images"] for epoch in result["epochs"]] == [40, 40]
    assert result["images_per_s"] == pytest.approx(80 / result["wall_s"])
    assert result["images_per_cpu_s"] > 0
    assert result["stage_s"]["decode"] > 0 and result["stage_s"]["transform"] > 0
    assert result["bad_files"] == result["fallback_samples"] == 0


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_text(small_images, capsys, dtype):
    lines = bench(capsys, small_images, "--epochs", 1, "--dtype", dtype).splitlines()
    assert "images/s" in lines[0] and "images per CPU-second (40 images" in lines[0]
    words = [line.split()[0] for line in lines[1:]]
    assert words == ["epochs", "decode", "transform", "idle", "reader", "Pillow"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_checked_values_are_those_of_a_loader_with_that_dtype(small_images, dtype):
    steps = T.RandomResizedCrop(8), T.ToTensor(), T.Normalize(helpers.MEAN, helpers.STD)
    dataset = helpers.ImageFolder(str(small_images), helpers.compose(*steps))
    source = recognise(helpers.native_loader(dataset, dtype=getattr(torch, dtype))).source
    assert imagenet_value_table(dtype).tobytes() == source.plan.value_table


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_bad_files_are_listed_without_an_error(tmp_path, capsys, dtype):
    for i in range(6):
        helpers.save_jpeg(tmp_path / "c" / f"{i}.jpg", 40, 30, seed=i)
    (tmp_path / "c" / "text.jpg").write_text("no image")
    (tmp_path / "c" / "empty.jpg").write_bytes(b"")
    helpers.save_bare_jpeg(tmp_path / "c" / "bare.jpg", 40, 30)
    result = json.loads(bench(capsys, tmp_path, "--json", "--epochs", 2, "--batch-size", 4,
                              "--dtype", dtype))
    assert (result["files"], result["images"]) == (9, 18)
    assert sorted(path.rsplit("/", 1)[1] for path in result["bad"]) == ["empty.jpg", "text.jpg"]
    assert (result["bad_files"], result["native_samples"], result["fallback_samples"]) == (2, 12, 6)
    text = bench(capsys, tmp_path, "--epochs", 1)
    assert "bad        2 files" in text and "text.jpg: UnidentifiedImageError" in text


def test_files_found_in_a_folder(tmp_path, small_images):
    dataset = helpers.ImageFolder(str(small_images))
    assert module.find_images(small_images) == [path for path, _ in dataset.samples]
    helpers.save_jpeg(tmp_path / "b.jpg", 9, 9)
    helpers.save_jpeg(tmp_path / "A.JPEG", 9, 9)
    (tmp_path / "notes.txt").write_text("")
    assert module.find_images(tmp_path) == [str(tmp_path / "A.JPEG"), str(tmp_path / "b.jpg")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere/at/all"], "/nowhere/at/all is not a folder"),
        (["{}", "--batch-size", "0"], "'0' is not a whole number above 0"),
        (["{}", "--threads", "x"], "'x' is not a whole number above 0"),
        (["{}", "--threads", "5000"], "n_threads is 5000"),
        (["{}", "--size", "100000"], "height is 100000"),
        (["{}", "--reader", "mmap"], "invalid choice: 'mmap'"),
        (["{}", "--dtype", "int8"], "invalid choice: 'int8'"),
        ([], "required: DIR"),
    ],
)
def test_bad_usage(small_images, capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *[word.format(small_images) for word in words]])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_pack(small_images, tmp_path, capsys):
    helpers.save_bare_jpeg(tmp_path / "in" / "c" / "bare.jpg", 40, 30)
    helpers.save_jpeg(tmp_path / "in" / "c" / "other.jpg", 200, 90)
    assert cli.main(["pack", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    result = json.loads(bench(capsys, tmp_path / "out", "--json", "--epochs", 2, "--size", 32))
    assert (result["files"], result["images"], result["native_samples"]) == (2, 4, 2)
    assert (result["fallback_samples"], result["bad_files"]) == (2, 0)
    index = tmp_path / "out" / "index.fmp"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(SystemExit):
        cli.main(["bench", str(tmp_path / "out")])
    assert str(index) in capsys.readouterr().err


def test_a_folder_without_images(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", str(tmp_path)])
    assert "contains no images" in capsys.readouterr().err


def test_runs_as_a_module_without_torchvision(small_images):
    code = (
        "import sys, runpy; sys.argv = ['feedmill', 'bench', sys.argv[1], '--epochs', '1']\n"
        "try: runpy.run_module('feedmill', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torchvision' not in sys.modules and 'PIL' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(small_images)], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "images/s" in done.stdout and done.stderr == ""


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("feedmill 0.")
