"""The index file of images: it is read as it was written, small, and checked."""

import os
import pickle
import struct
import subprocess
import sys
import zlib

import helpers  # noqa: F401
import numpy as np
import pytest
from feedmill.indexing.building import Contents, Entry, build, write
from feedmill.indexing.format import HEADER, IndexFile, IndexFileError
from hypothesis import example, given, settings
from hypothesis import strategies as st

ENTRIES = [
    Entry("cat/1.jpg", 12, "0123abc"), Entry("cat/ü/\udcff.png", 1 << 40, "a-7"),
    Entry("dog/a b+c.jpg"), Entry("", 0, ""),
]
CONTENTS = Contents("s3://bucket/train/", ["cat", "dög"], ENTRIES, [0, 0, 1, 1])
WHOLE = b"".join(build(CONTENTS))


def test_an_index_is_read_as_it_was_written():
    index = IndexFile(WHOLE, "an index")
    assert (index.n_samples, index.n_classes, index.n_bytes) == (4, 2, len(WHOLE))
    assert index.root == CONTENTS.root and index.classes == CONTENTS.classes
    assert [index.entry(i) for i in range(4)] == [
        (CONTENTS.root + one.key, f'"{one.etag}"' if one.etag else "") for one in ENTRIES]
    assert index.sizes.tolist() == [12, 1 << 40, -1, 0]
    assert [index.label(i) for i in range(4)] == [0, 0, 1, 1]


def test_the_format_follows_its_description():
    """Parses the file byte by byte, without the package's reader."""
    header = struct.unpack("<8sIIQIIQQQQII56s", WHOLE[:128])
    assert header[:6] == (b"\x93FMINDX\n", 1, 128, 4, 2, 0)
    n_root, n_classes, n_entries, n_bytes, body_crc, crc = header[6:12]
    assert n_bytes == len(WHOLE) and header[12] == bytes(56)
    assert body_crc == zlib.crc32(WHOLE[128:])
    assert crc == zlib.crc32(WHOLE[:68] + bytes(60))
    offsets = struct.unpack("<5Q", WHOLE[128:168])
    assert struct.unpack("<4q", WHOLE[168:200]) == (12, 1 << 40, -1, 0)
    assert struct.unpack("<4i", WHOLE[200:216]) == (0, 0, 1, 1)
    at = 216
    assert WHOLE[at : at + n_root] == b"s3://bucket/train/"
    at += n_root
    assert WHOLE[at : at + n_classes] == "cat\0dög\0".encode()
    at += n_classes
    assert at + n_entries == len(WHOLE) and offsets[-1] == n_entries
    assert WHOLE[at : at + offsets[1]] == b"cat/1.jpg\x000123abc"
    assert WHOLE[at + offsets[1] : at + offsets[2]] == b"cat/\xc3\xbc/\xff.png\0a-7"


def with_crcs(data):
    data[64:68] = zlib.crc32(data[128:]).to_bytes(4, "little")
    data[68:72] = bytes(4)
    data[68:72] = zlib.crc32(data[:128]).to_bytes(4, "little")
    return bytes(data)


mutations = st.lists(
    st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=9)), max_size=4)


@settings(max_examples=300, deadline=None)
@given(changes=mutations, end=st.integers(-40, 40))
@example(changes=[], end=0)
def test_damage_is_noticed(changes, end):
    data = bytearray(WHOLE[: len(WHOLE) + min(end, 0)] + bytes(max(end, 0)))
    for at, text in changes:
        data[at : at + len(text)] = text
    if data == WHOLE:
        IndexFile(bytes(data), "same")
        return
    with pytest.raises(IndexFileError, match="^mutated: "):
        IndexFile(bytes(data), "mutated")


@settings(max_examples=400, deadline=None)
@given(changes=mutations, end=st.integers(-40, 40))
def test_forged_indexes(changes, end):
    """With right checksums: an index raises IndexFileError, or all in it is within its bounds."""
    data = bytearray(WHOLE[: len(WHOLE) + min(end, 0)] + bytes(max(end, 0)))
    for at, text in changes:
        data[at : at + len(text)] = text
    try:
        index = IndexFile(with_crcs(data), "forged")
    except IndexFileError as error:
        assert str(error).startswith("forged: ")
        return
    assert len(index.classes) == index.n_classes
    for i in range(index.n_samples):
        assert 0 <= index.label(i) < index.n_classes
        try:
            name, _ = index.entry(i)
            assert name.startswith(index.root)
        except IndexFileError as error:
            assert "has no end" in str(error)


@settings(max_examples=200, deadline=None)
@given(
    root=st.text(max_size=20).filter(lambda one: "\0" not in one),
    keys=st.lists(st.tuples(
        st.text(max_size=30).filter(lambda one: "\0" not in one), st.integers(-1, (1 << 63) - 1),
        st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"'),
                max_size=133),
        st.integers(0, 4)), max_size=20),
    classes=st.lists(st.text(max_size=9).filter(lambda one: "\0" not in one), min_size=5,
                     max_size=5),
)
def test_any_names(root, keys, classes):
    entries = [Entry(*one[:3]) for one in keys]
    index = IndexFile(
        b"".join(build(Contents(root, classes, entries, [one[3] for one in keys]))), "x")
    assert index.classes == classes
    for i, (key, size, etag, label) in enumerate(keys):
        assert index.entry(i) == (root + key, f'"{etag}"' if etag else "")
        assert (int(index.sizes[i]), index.label(i)) == (size, label)


def test_what_no_index_can_hold():
    for bad in ("a\0b", "x" * 4096):
        with pytest.raises(ValueError, match="0 byte|longer"):
            build(Contents("s3://b/", ["c"], [Entry(bad)], [0]))
    with pytest.raises(ValueError, match="1 entries, but 2 labels"):
        build(Contents("s3://b/", ["c"], [Entry("a")], [0, 0]))
    # ETags that can't be sent back are left out.
    for etag in ("é", "x" * 134, 'a"b', "a\nb"):
        index = IndexFile(b"".join(build(Contents("", ["c"], [Entry("a", 1, etag)], [0]))), "x")
        assert index.entry(0) == ("a", "")


@pytest.mark.parametrize("data, why", [
    (b"", "only 0 bytes"), (b"\x93FMPACK\n" + bytes(200), "not an index of `feedmill index`"),
    (b"key,label\n" * 50, "not an index of `feedmill index`"),
    (WHOLE[:8] + b"\2" + WHOLE[9:], "version 2; this feedmill reads version 1"),
    (WHOLE[:-1], "is damaged"), (WHOLE[:127], "only 127 bytes"), (WHOLE[:128], "is damaged"),
    (WHOLE[:-1] + b"?", "its checksum is wrong"), (WHOLE[:20] + b"?" + WHOLE[21:], "header"),
])
def test_other_files_are_refused_by_name(tmp_path, data, why):
    from feedmill import Index

    path = tmp_path / "train.index"
    path.write_bytes(data)
    with pytest.raises(IndexFileError, match=why) as caught:
        Index(path)
    assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="gone"):
        Index(tmp_path / "gone.index")


def test_a_failed_write_leaves_the_earlier_index(tmp_path, monkeypatch):
    path = tmp_path / "a.index"
    n_bytes = write(CONTENTS, path)
    assert n_bytes == path.stat().st_size and path.read_bytes() == WHOLE

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write(CONTENTS._replace(root="other"), path)
    assert path.read_bytes() == WHOLE and os.listdir(tmp_path) == ["a.index"]


def test_a_copy_notices_another_index(tmp_path):
    from feedmill import Index

    path = tmp_path / "a.index"
    write(CONTENTS, path)
    data = pickle.dumps(Index(path))
    assert len(data) < 600
    assert len(pickle.loads(data)) == 4
    write(CONTENTS._replace(labels=[1, 1, 0, 0]), path)
    with pytest.raises(IndexFileError, match="was written again since"):
        pickle.loads(data)


MANY = """
import resource, sys
import numpy as np
from feedmill.indexing.building import Contents, Entry, write
n = 1_000_000
entries = [Entry(f"n{i % 1000:08}/ILSVRC2012_{i:08}.JPEG", 100_000 + i, f"{i:032x}")
           for i in range(n)]
labels = np.arange(n) % 1000
write(Contents("s3://bucket/train/", [f"n{i:08}" for i in range(1000)], entries, labels),
      sys.argv[1])
"""
OPEN = """
import resource, sys
import feedmill, numpy as np
dataset = feedmill.Index(sys.argv[1])
samples = dataset.samples
assert len(dataset) == len(samples) == 1_000_000 and len(dataset.classes) == 1000
assert samples[-1] == ("s3://bucket/train/n00000999/ILSVRC2012_00999999.JPEG", 999)
assert dataset.feedmill_item(5)[0][1] == '"%032x"' % 5
assert np.array_equal(np.asarray(dataset.targets), np.arange(1_000_000) % 1000)
loader = feedmill.DataLoader(dataset, batch_size=8)
assert "s3://bucket" in loader.explain()
"""


@pytest.mark.slow
def test_a_million_names(tmp_path):
    path = str(tmp_path / "many.index")
    subprocess.run([sys.executable, "-c", MANY, path], check=True)
    assert os.path.getsize(path) < 110_000_000
    subprocess.run([sys.executable, "-c", OPEN, path], check=True)


def test_header_size():
    assert HEADER.itemsize == 128 and np.dtype("<u8").itemsize == 8
