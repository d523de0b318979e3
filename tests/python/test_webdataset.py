"""The dataset feedmill.WebDataset: tar files of any writer, which are indexed once, and errors in
such files."""

import gzip
import io
import os
import pickle
import random
import tarfile

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.packing import webdataset
from feedmill.packing.grouping import expand, groups
from feedmill.packing.index import PackError
from feedmill.packing.tars import header_of, members
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

TO_TENSOR = transforms.PILToTensor()
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    root = tmp_path_factory.mktemp("jpegs")
    return [helpers.save_jpeg(root / f"{i}.jpg", 30 + i, 40 - i, seed=i).read_bytes()
            for i in range(12)]


def write_tar(path, files, form=tarfile.GNU_FORMAT, others=()):
    """Writes a tar file of (name, bytes), and of TarInfos without content."""
    with tarfile.open(path, "w", format=form) as tar:
        for info in others:
            tar.addfile(info)
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples_of(jpegs, name="{}"):
    return [one for i, data in enumerate(jpegs) for one in (
        (f"{name.format(i)}.jpg", data), (f"{name.format(i)}.cls", f"{i % 4}\n".encode()),
        (f"{name.format(i)}.json", b"{}"),
    )]


def pixels_of(data):
    return TO_TENSOR(Image.open(io.BytesIO(data)).convert("RGB"))


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["{}", "class a/{}", "ü/{}", f"{'long/' * 25}{'n' * 90}{{}}"])
def test_every_kind_of_tar_file(tmp_path, jpegs, form, name):
    if form == "ustar" and len(name) > 100:
        name = f"{'long/' * 25}{{}}"  # as long as this format allows
    path = write_tar(tmp_path / "a.tar", samples_of(jpegs, name), FORMATS[form])
    dataset = feedmill.WebDataset(path, TO_TENSOR)
    assert dataset.samples == [(f"{name.format(i)}.jpg", i % 4) for i in range(12)]
    assert dataset.classes == ["0", "1", "2", "3"] and dataset.class_to_idx["2"] == 2
    assert all(torch.equal(dataset[i][0], pixels_of(jpegs[i])) for i in (0, 5, -1))


def test_members_that_are_not_samples_are_skipped(tmp_path, jpegs):
    others = [tarfile.TarInfo("folder"), tarfile.TarInfo("link.jpg"), tarfile.TarInfo("fifo.jpg")]
    for info, kind in zip(others, (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE)):
        info.type, info.linkname = kind, "0.jpg"
    files = [("__meta__", b"x"), ("__more__/x.jpg", b"x"), ("readme", b"text")]
    path = write_tar(tmp_path / "a.tar", files + samples_of(jpegs[:2]), others=others)
    assert [name for name, _ in feedmill.WebDataset(path).samples] == ["0.jpg", "1.jpg"]


def test_extensions_and_labels(tmp_path, jpegs):
    files = [("a.JPG", jpegs[0]), ("a.seg.png", b"x"), ("b.cls", b"12"), ("b.jpeg", jpegs[1]),
             ("./c.jpg", jpegs[2])]
    dataset = feedmill.WebDataset(write_tar(tmp_path / "a.tar", files), TO_TENSOR)
    assert list(dataset.samples) == [("a.JPG", -1), ("b.jpeg", 12), ("./c.jpg", -1)]
    assert np.asarray(dataset.targets).tolist() == [-1, 12, -1] and len(dataset.classes) == 13
    assert dataset[0][1] == -1 and torch.equal(dataset[1][0], pixels_of(jpegs[1]))


def test_several_shards(tmp_path, jpegs):
    for k in range(3):
        write_tar(tmp_path / f"s-{k:03}.tar", samples_of(jpegs[4 * k : 4 * k + 4], f"{k}/{{}}"))
    (tmp_path / "s-000.idx").write_text("v1.2 0\n")
    transform = helpers.compose(transforms.Resize((9, 9)), TO_TENSOR)
    dataset = feedmill.WebDataset(str(tmp_path / "s-{000..002}.tar"), transform, str)
    assert len(dataset) == 12 and "3 tar files" in repr(dataset)
    want = [transform(Image.open(io.BytesIO(data)).convert("RGB")) for data in jpegs]
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        order = random.Random(1).sample(range(12), 12)
        loader = helpers.native_loader(one, batch_size=5, sampler=order, num_workers=2)
        got = [(image, label) for images, labels in loader for image, label in zip(images, labels)]
        assert all(torch.equal(image, want[i]) and label == str(i % 4)
                   for i, (image, label) in zip(order, got, strict=True))
    listed = [str(tmp_path / f"s-00{k}.tar") for k in (2, 0)]
    assert [name[0] for name, _ in feedmill.WebDataset(listed).samples] == list("22220000")
    workers = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
    assert torch.equal(torch.cat([images for images, _ in workers]), torch.stack(want))


def test_urls():
    assert expand("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand("{a,b{0..1}}-{3..1..2}.tar::file:/c.tar") == [
        "a-3.tar", "a-1.tar", "b0-3.tar", "b0-1.tar", "b1-3.tar", "b1-1.tar", "/c.tar"
    ]
    assert expand(["x.tar", "file:///y.tar"]) == ["x.tar", "/y.tar"]
    for urls, text in (([], "no tar file"), ("{a}.tar", "must be a range"),
                       ("pipe:cat a.tar", "not pipe:"), ("feedmilltest://b/a.tar", "does not know feedmilltest:")):
        with pytest.raises(ValueError, match=text):
            expand(urls)


# ---- the cached index ----------------------------------------------------------------------------


def test_a_tar_file_is_indexed_once(tmp_path, jpegs, cache, monkeypatch):
    path = write_tar(tmp_path / "a.tar", samples_of(jpegs[:3]))
    indexed = []

    def counted(*arguments):
        indexed.append(1)
        return groups(*arguments)

    monkeypatch.setattr(webdataset, "groups", counted)
    assert len(feedmill.WebDataset(path)) == len(feedmill.WebDataset(str(path))) == 3
    assert len(indexed) == 1 and len(list((cache / "feedmill" / "tars").iterdir())) == 1
    write_tar(path, samples_of(jpegs[:4]))
    os.utime(path, ns=(1, 1))
    assert len(feedmill.WebDataset(path)) == 4 and len(indexed) == 2
    os.utime(path, ns=(2, 2))
    assert len(feedmill.WebDataset(path)) == 4 and len(indexed) == 3
    (kept,) = (cache / "feedmill" / "tars").iterdir()
    kept.write_bytes(kept.read_bytes()[:-5])
    assert len(feedmill.WebDataset(path)) == 4 and len(indexed) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # no folder can be made below a file
    assert len(feedmill.WebDataset(path)) == 4 and len(indexed) == 5


# ---- damaged tar files ---------------------------------------------------------------------------


def test_errors_name_bad_samples(tmp_path, jpegs):
    for files, text in (
        ([("a.jpg", jpegs[0]), ("b.json", b"{}")], "a.tar: sample 'b' has no image"),
        ([("a.jpg", jpegs[0]), ("a.png", b"")], "sample 'a' has two images"),
        ([("a.jpg", jpegs[0]), ("a.JPG", b"")], "sample 'a' has two members with the extension 'jpg'"),
        ([("a.jpg", jpegs[0]), ("a.cls", b"cat")], "a.tar: 'a.cls' holds b'cat'"),
        ([("a.jpg", jpegs[0]), ("a.cls", b"9" * 15)], "a label must be an integer"),
        ([("a.jpg", jpegs[0]), ("a.cls", b"-1")], "a label must be an integer"),
    ):
        path = write_tar(tmp_path / "a.tar", files)
        with pytest.raises(PackError, match=text):
            feedmill.WebDataset(path)


def test_incomplete_and_wrong_tar_files(tmp_path, jpegs):
    whole = write_tar(tmp_path / "whole.tar", samples_of(jpegs[:2])).read_bytes()
    path = tmp_path / "a.tar"
    for data, text in (
        (b"text " * 200, "not a tar file at byte 0"),
        (gzip.compress(whole), "compressed by gzip"),
        (whole[:700], "truncated: 0.jpg has"),
        (whole[:512] + bytes(600), "truncated: 0.jpg has"),
        (whole[:100], "truncated"),
        (b"1" + whole[1:], "not a tar file"),
    ):
        path.write_bytes(data)
        with pytest.raises(PackError, match=f"a.tar: .*{text}"):
            feedmill.WebDataset(path)
    with pytest.raises(FileNotFoundError):
        feedmill.WebDataset(tmp_path / "none.tar")
    path.write_bytes(b"")
    assert len(feedmill.WebDataset(path)) == 0
    end = whole.rindex(b"{}") + 2  # tarfile accepts files without padding and end, too
    path.write_bytes(whole[:end])
    assert len(feedmill.WebDataset(path)) == 2


def test_damage_after_the_first_member(tmp_path):
    """tarfile takes a damaged header for the end of the file, and walks backwards over a negative
    size: both would lose samples, or never end."""
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"x" * 600), ("b.jpg", b"y")])
    whole, second = path.read_bytes(), 512 + 1024
    negative = bytearray(whole[second : second + 512])
    negative[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative)
    for header in (b"1" + whole[second + 1 : second + 512], b"\xff" * 512, bytes(negative)):
        path.write_bytes(whole[:second] + header + whole[second + 512 :])
        with pytest.raises(PackError, match="a.tar: damaged tar header at byte 1536"):
            feedmill.WebDataset(path)


def walk(path):
    """All members of a tar file; None if reading it raises PackError."""
    with open(path, "rb") as file:
        try:
            found = list(members(file.fileno(), os.fstat(file.fileno()).st_size, "x.tar"))
        except PackError as error:
            assert str(error).startswith("x.tar: ")
            return None
    n_bytes = os.stat(path).st_size
    assert all(0 <= one.offset <= n_bytes - one.bytes and one.bytes >= 0 for one in found)
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_tar_files(data, tmp_path_factory):
    """With any content, members lie within the file, or PackError is raised."""
    path = tmp_path_factory.getbasetemp() / "mutated.tar"
    form = data.draw(st.sampled_from(list(FORMATS.values())))
    name = data.draw(st.sampled_from(["a", "ä" * 20, "b/" * 40 + "c"]))
    if form == tarfile.USTAR_FORMAT or data.draw(st.booleans()):
        name = name[:60]
    write_tar(path, [(f"{name}.jpg", b"x" * 600), (f"{name}.cls", b"1")], form)
    content = bytearray(path.read_bytes()[: 512 * 9])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(1, 12))] = data.draw(st.binary(max_size=12))
    for at in range(0, len(content) - 512, 512):  # valid checksums, so that all is read
        header = content[at : at + 512]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            content[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(content)
    walk(path)


@settings(max_examples=100, deadline=None)
@given(name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1,
                    max_size=300), n=st.integers(0, 2000))
def test_written_headers_are_read_by_tarfile(name, n, tmp_path_factory):
    if name.endswith("/"):
        name += "x"
    path = tmp_path_factory.getbasetemp() / "own.tar"
    path.write_bytes(header_of(name, n) + bytes(n + -n % 512) + bytes(1024))
    (member,) = walk(path)
    assert (member.name, member.bytes) == (name, n)
    with tarfile.open(path) as tar:
        (info,) = tar.getmembers()
        assert (info.name, info.size, info.offset_data) == (name, n, member.offset)


def test_large_sizes(tmp_path):
    """Sizes above 8 GiB, in binary and in PAX records; the file is sparse on the disk."""
    path, n_bytes = tmp_path / "large.tar", (8 << 30) + 5
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("a.jpg")
        info.size = n_bytes
        header = info.tobuf(form)
        with open(path, "wb") as file:
            file.write(header)
            file.truncate(len(header) + n_bytes + -n_bytes % 512)
        (member,) = walk(path)
        assert (member.offset, member.bytes) == (len(header), n_bytes)
