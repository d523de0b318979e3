"""Images whose paths are URLs: on the native path and on torch's, from a web server of made
objects; and how s3:// and gs:// names are requested."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.data import ImageList, imread
from feedmill.remote import names, process
from helpers import compose, images_of, remote_loader
from object_server import ObjectServer, without_settings
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

pytestmark = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")
FIXED = compose(T.Resize((8, 9)), T.ToTensor())


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    with without_settings(monkeypatch, tmp_path):
        yield


@pytest.fixture
def served(small_images):
    """(server, the folder's ImageFolder, its paths, their URLs)"""
    folder = ImageFolder(str(small_images), FIXED)
    paths = [path for path, _ in folder.samples]
    with ObjectServer({path: open(path, "rb").read() for path in paths}) as server:
        yield server, folder, paths, [server.url + path for path in paths]


class Own(Dataset):
    """A dataset of one's own with feedmill_item, whose paths feedmill can't know in advance."""

    def __init__(self, items, transform=FIXED):
        self.items, self.transform = items, transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        raise AssertionError("not called on the native path")

    def feedmill_item(self, index):
        return self.items[index], index


# ---- which paths are names -----------------------------------------------------------------------


def test_which_paths_are_names(tmp_path, monkeypatch):
    assert all(map(names.is_name, ["s3://b/k", "gs://b/k", "http://h/", "https://h/"]))
    assert not any(map(names.is_name, ["/a/s3://b", "hf://a/b", "s3:/b", b"s3://b/k", tmp_path, 1]))
    assert names.why_no_name("/a/b.jpg") == names.why_no_name(b"x") == ""
    assert names.why_no_name("s3://b/k") == ""
    assert "az:// is not supported here" in names.why_no_name("az://b/k")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:").mkdir()
    (tmp_path / "hf:" / "x").write_bytes(b"a file")
    assert names.why_no_name("hf://x") == ""
    assert "hf:// is not supported here" in names.why_no_name("hf://y")


def test_names_in_messages():
    assert names.shown("https://user:secret@host:1/a@b?secret#c") == "https://host:1/a@b"
    assert names.shown("http://host?secret/x@y") == "http://host"
    assert names.shown("HTTPS://u:secret@host/a?secret") == "HTTPS://host/a"
    assert names.shown("az://c/k.jpg?sig=secret") == "az://c/k.jpg"
    assert names.is_name("HTTPS://host/a") and names.is_name("S3://bucket/key")
    assert names.shown("s3://bucket/what?x") == "s3://bucket/what?x"
    assert names.shown("/a?b") == "/a?b" and names.shown(b"x") == b"x"
    assert names.place_of("s3://bucket/a/b") == "s3://bucket"
    assert names.place_of("https://u:p@host/a") == "https://host"
    assert names.place_of("/a/b") == ""


# ---- on all paths --------------------------------------------------------------------------------


def test_native_pixels_are_those_of_files(served):
    server, folder, paths, urls = served
    loader = remote_loader(ImageList(urls, transform=FIXED))
    assert f"read over the network: {server.url}" in loader.explain()
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    for _ in range(2):
        assert torch.equal(images_of(loader), expected)
    assert loader.stats().decode.fallback_samples == 0
    assert len(server.requests) == 2 * len(urls)


def test_own_dataset_without_a_list_of_paths(served):
    server, folder, paths, urls = served
    loader = remote_loader(Own(urls))
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    for num_workers in (0, 2):
        loader = remote_loader(Own(urls), num_workers=num_workers)
        assert torch.equal(images_of(loader), expected)
        assert loader.stats().decode.fallback_samples == 0
    # Files need no connection.
    loader = remote_loader(Own(paths))
    assert torch.equal(images_of(loader), expected)
    assert "http" not in loader.stats().io.reader


def test_files_and_objects_in_one_batch(served):
    _, folder, paths, urls = served
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    mixed = [url if i % 2 else path for i, (path, url) in enumerate(zip(paths, urls))]
    assert torch.equal(images_of(remote_loader(ImageList(mixed, transform=FIXED))), expected)
    late = [*paths[:30], *urls[30:]]  # only later batches have names
    assert torch.equal(images_of(remote_loader(Own(late))), expected)


@pytest.mark.parametrize("options", [
    {"native": "off"}, {"native": "off", "num_workers": 2}, {"native": "hybrid"},
    {"native": "verify"},
])
def test_other_paths(served, options):
    _, folder, _, urls = served
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    dataset = ImageList(urls, transform=FIXED)
    loader = feedmill.DataLoader(dataset, batch_size=7, **options)
    assert torch.equal(images_of(loader), expected)
    assert "read over the network" in loader.explain()


def test_torchs_own_loader(served):
    _, folder, _, urls = served
    dataset = pickle.loads(pickle.dumps(ImageList(urls, transform=FIXED)))
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    assert torch.equal(images_of(TorchDataLoader(dataset, batch_size=7, num_workers=2)), expected)


def test_formats_that_pillow_decodes(tmp_path, small_images):
    image = Image.fromarray(helpers.pixels(30, 40))
    image.save(tmp_path / "a.bmp")
    image.save(tmp_path / "b.jpg")
    data = {f"/{name}": (tmp_path / name).read_bytes() for name in ("a.bmp", "b.jpg")}
    with ObjectServer(data) as server:
        urls = [f"{server.url}/a.bmp", f"{server.url}/b.jpg"]
        files = [str(tmp_path / "a.bmp"), str(tmp_path / "b.jpg")]
        mine = images_of(remote_loader(ImageList(urls, transform=FIXED)))
        assert torch.equal(mine, images_of(remote_loader(ImageList(files, transform=FIXED))))


def test_imread_and_ranges(served):
    server, _, paths, urls = served
    for mode in ("bgr", "rgb"):
        assert np.array_equal(imread(urls[3], mode), imread(paths[3], mode))
    whole = server.objects[paths[3]]
    server.objects["/shard.tar"] = b"x" * 1000 + whole + b"y" * 1000
    shard = f"{server.url}/shard.tar"
    loader = remote_loader(Own([(shard, 1000, len(whole)), urls[4]]))
    expected = images_of(remote_loader(ImageList(paths[3:5], transform=FIXED)))
    assert torch.equal(images_of(loader), expected)
    assert process.fetch(shard, 1000, len(whole)) == whole
    assert process.fetch(shard)[:3] == b"xxx"
    with pytest.raises(OSError, match="ends before"):
        process.fetch(shard, 1000, 1 << 20)


def test_cache(served):
    server, folder, _, urls = served
    loader = remote_loader(ImageList(urls, transform=FIXED), cache="ram:8MiB")
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    for _ in range(3):
        assert torch.equal(images_of(loader), expected)
    assert len(server.requests) == len(urls)


def delay_first_bytes(server, urls):
    """Makes the server wait before its answers, for longer than all other parts of reads take on
    this machine."""
    begun = time.monotonic()
    images_of(remote_loader(ImageList(urls, transform=FIXED), num_workers=1, prefetch_factor=1))
    delay_s = max(0.3, 3 * (time.monotonic() - begun))
    server.status = lambda path: time.sleep(delay_s) or 200


def test_waits_tell_what_reads_did(served):
    server, _, _, urls = served
    delay_first_bytes(server, urls)
    loader = remote_loader(ImageList(urls, transform=FIXED), num_workers=1, prefetch_factor=1)
    images_of(loader)
    stats = loader.stats()
    assert helpers.inexact_pieces(stats.steps, stats.flat()) == []
    parts = stats.storage_waits_by_part(None)
    assert sum(parts.values()) == stats.waits.storage_ns
    assert parts == {name: getattr(stats.waits, name) for name in parts}
    assert max(parts, key=parts.get) == "storage_first_byte_ns"
    assert "waiting for the first byte" in stats.report()


def test_waits_of_a_run_and_scalars_tell_what_reads_did(served):
    server, _, _, urls = served
    delay_first_bytes(server, urls)
    states, written = [None], {}

    class Writer:
        def add_scalar(self, tag, value, global_step):
            written[tag, global_step] = value

    for step in range(2):
        loader = remote_loader(ImageList(urls, transform=FIXED), num_workers=1, prefetch_factor=1)
        loader.load_state_dict(states[-1] or {})
        feedmill.log_scalars(Writer(), loader, 0)
        images_of(loader)
        feedmill.log_scalars(Writer(), loader, step)
        waits = loader.stats().waits
        parts = {tag.rpartition("/")[2]: value for (tag, at), value in written.items()
                 if at == step and "/storage_wait_ms/" in tag}
        assert max(parts, key=parts.get) == "first_byte" and len(parts) == 6
        assert sum(parts.values()) == pytest.approx(written["feedmill/wait_ms/storage", step])
        states.append(loader.state_dict())
        begun = (states[-2] or {}).get("run", {}).get("storage_first_byte_ns", 0)
        assert states[-1]["run"]["storage_first_byte_ns"] == begun + waits.storage_first_byte_ns
    whole = loader.report().partition("whole run")[2]
    assert "storage: waiting for the first byte" in whole


# ---- faults --------------------------------------------------------------------------------------


def test_missing_objects_are_named_without_secrets(served):
    server, _, _, urls = served
    gone = f"http://user:secret1@{server.host}/gone.jpg?signature=secret2"
    for options in ({}, {"native": "off"}, {"native": "hybrid"}):
        loader = feedmill.DataLoader(ImageList([*urls[:3], gone], transform=FIXED), **options)
        with pytest.raises(FileNotFoundError, match="HTTP 404") as caught:
            list(loader)
        text = f"{caught.value!r} {caught.value} {loader.report()} {loader.stats()!r}"
        assert "secret" not in text
        assert f"http://{server.host}/gone.jpg" in str(caught.value)
        if not options:
            assert "dataset index 3" in str(caught.value)


def test_refused_objects(served):
    server, _, paths, urls = served
    server.status = lambda path: 403 if path == paths[2] else 200
    loader = remote_loader(ImageList(urls, transform=FIXED))
    with pytest.raises(PermissionError, match="HTTP 403.*dataset index 2"):
        list(loader)
    # A refused object is not asked for again and again.
    assert sum(path == paths[2] for path, _ in server.requests) == 1


@pytest.mark.parametrize("policy", ["skip", "zero", "replace"])
def test_on_error(served, policy):
    server, _, paths, urls = served
    server.status = lambda path: 404 if path == paths[2] else 200
    loader = remote_loader(ImageList(urls, transform=FIXED), on_error=policy)
    images = images_of(loader)
    assert len(images) == len(urls) - (policy == "skip")
    (error,) = loader.stats().sample_errors
    assert error.index == 2 and "HTTP 404" in error.cause


def test_what_is_no_image(served):
    server, _, _, urls = served
    server.objects["/text"] = b"this is no image"
    with pytest.raises(Exception, match="cannot identify image file.*dataset index 1"):
        list(remote_loader(ImageList([urls[0], f"{server.url}/text"], transform=FIXED)))


def test_a_server_that_is_gone(monkeypatch):
    with ObjectServer({}) as server:
        url = f"{server.url}/a.jpg"
    monkeypatch.setenv("FEEDMILL_REMOTE_GIVE_UP", "0.01")
    with pytest.raises(OSError, match="a.jpg"):
        list(remote_loader(ImageList([url], transform=FIXED)))
    with pytest.raises(OSError, match="a.jpg"):
        ImageList([url])[0]


@pytest.mark.parametrize(("name", "why"), [
    ("s3://", "no bucket"), ("s3://bucket", "no key"), ("http://", "no host"),
    ("http://h/a\nb", "control character"), ("s3://a:b/c", "name of a bucket"),
])
def test_invalid_names(name, why):
    with pytest.raises(OSError, match=why):
        process.fetch(name)
    with pytest.raises(OSError, match=why):
        list(remote_loader(ImageList([name], transform=FIXED)))


def test_interrupted_fetch(served):
    server, _, _, urls = served
    asked, may_go_on = threading.Event(), threading.Event()

    def wait(path):
        asked.set()
        may_go_on.wait(60)
        return 200

    server.status = wait
    interrupt = threading.Thread(
        target=lambda: (asked.wait(60), os.kill(os.getpid(), signal.SIGINT)))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        process.fetch(urls[0])
    may_go_on.set()
    interrupt.join()
    assert process.fetch(urls[1])


# ---- processes -----------------------------------------------------------------------------------


def test_a_forked_child_reads_by_itself(served):
    server, _, paths, urls = served
    dataset = ImageList(urls, transform=FIXED)
    loader = remote_loader(dataset)
    expected = images_of(loader)
    assert process.fetch(urls[0])
    pid = os.fork()
    if pid == 0:
        good = torch.equal(images_of(loader), expected) and torch.equal(dataset[0][0], expected[0])
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(images_of(loader), expected)


def test_threads_end_with_the_process(served):
    """The threads of fetches do not keep the process, nor write anything at its end."""
    _, _, _, urls = served
    script = f"from feedmill.remote.process import fetch; assert fetch({urls[0]!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "value", "message"), [
    ("AWS_ENDPOINT_URL", "127.0.0.1:9000", "endpoint_url does not begin with http"),
    ("AWS_ENDPOINT_URL_S3", "http://u:secret@h", "endpoint_url has a user"),
    ("AWS_REGION", "Europe!", "region"),
    ("FEEDMILL_REMOTE_REQUESTS", "0", "FEEDMILL_REMOTE_REQUESTS is '0'; it must be an integer"),
    ("FEEDMILL_REMOTE_ATTEMPTS", "many", "FEEDMILL_REMOTE_ATTEMPTS"),
    ("FEEDMILL_REMOTE_HEDGE", "101", "must be an integer from 0 to 100"),
    ("FEEDMILL_REMOTE_GIVE_UP", "-1", "number of seconds"),
    ("AWS_NO_SIGN_REQUEST", "perhaps", "must be YES or NO"),
])
def test_invalid_settings(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message) as caught:
        list(remote_loader(ImageList(["s3://bucket/a.jpg"], transform=FIXED)))
    assert "secret" not in str(caught.value)


def test_settings_that_change_between_epochs(served, monkeypatch):
    server, folder, paths, _ = served
    data = {f"/other/bucket{path}": server.objects[path] for path in paths}
    data.update({f"/bucket{path}": b"no image" for path in paths})
    server.objects.update(data)
    loader = remote_loader(ImageList([f"s3://bucket{path}" for path in paths], transform=FIXED))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    with pytest.raises(Exception, match="cannot identify"):
        list(loader)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"{server.url}/other/")
    assert torch.equal(images_of(loader), images_of(TorchDataLoader(folder, batch_size=7)))
