"""The index of a pack: it is read as it was written, its contents are checked, and it is small."""

import os
import struct
import subprocess
import sys
import zlib

import helpers  # noqa: F401
import numpy as np
import pytest
from feedmill.packing.building import Sample, Shard, build, join
from feedmill.packing.index import HEADER, RECORD, SHARD, Index, PackError
from hypothesis import example, given, settings
from hypothesis import strategies as st


def some_index(n_shards=3, n_samples=5, rows=8):
    parts = []
    for k in range(n_shards):
        samples = [
            Sample(f"c/{k}-{i}-ü.jpg", 512 + 1000 * i, 900, i % 3 - (i == 4), 63 * 8, 47, 21, 3,
                   tuple(range(100, 100 + 8 * rows, 8)))
            if i else Sample("c/plain.png", 512, 900, 1)
            for i in range(n_samples)
        ]
        parts.append(Index(build(
            Shard(f"shard-{k:06}.tar", 512 + 1000 * n_samples), samples, ["x", "y", "ü"],
            rows_per_sample=rows, part=k, n_parts=n_shards, digest=bytes(range(16)),
        ), "part"))
    return join(parts)


WHOLE = some_index()


def test_an_index_is_read_as_it_was_written():
    index = Index(WHOLE, "an index")
    assert (index.n_samples, index.n_shards, index.part, index.n_parts) == (15, 3, 0, 3)
    assert index.classes == ["x", "y", "ü"] and index.digest == bytes(range(16))
    assert [index.shard_name(k) for k in range(3)] == [f"shard-{k:06}.tar" for k in range(3)]
    assert index.name(7) == "c/1-2-ü.jpg" and index.name(5) == "c/plain.png"
    assert index.place(7) == (1, 2512, 900, 2, 504, 47, 21, 3)
    assert index.restart_index_of(7) == tuple(range(100, 164, 8)) and index.restart_index_of(5) == ()


def test_the_format_follows_its_description():
    """Parses the file byte by byte, without the package's reader."""
    header = struct.unpack("<8sIIQIIIIII16sQQI44s", WHOLE[:128])
    n_pool, n_bytes = header[11], header[12]
    assert header[:11] == (b"\x93FMPACK\n", 1, 128, 15, 3, 3, 8, 0, 3, 0, bytes(range(16)))
    assert n_bytes == len(WHOLE) and header[14] == bytes(44)
    assert header[13] == zlib.crc32(WHOLE[:80] + bytes(48))
    record = struct.unpack("<QIIiHHIHH", WHOLE[128 + 7 * 32 : 128 + 8 * 32])
    rows_at = 128 + 15 * 32
    assert struct.unpack("<8I", WHOLE[rows_at + 7 * 32 : rows_at + 8 * 32])[:2] == (100, 108)
    shards_at = rows_at + 15 * 32
    shard = struct.unpack("<6Q", WHOLE[shards_at + 48 : shards_at + 96])
    classes = struct.unpack("<3Q", WHOLE[shards_at + 144 : shards_at + 168])
    pool = WHOLE[shards_at + 168 :]
    assert len(pool) == n_pool
    assert record[:6] == (2512, 900, 1, 2, 504, 47) and record[7:] == (21, 3)
    assert pool[shard[3] + record[6] :].startswith("c/1-2-ü.jpg\0".encode())
    assert shard[:2] == (5512, 0) and shard[4:] == (5, 5)
    assert pool[shard[2] :].startswith(b"shard-000001.tar\0")
    assert pool[classes[2] :].startswith("ü\0".encode())
    assert (HEADER.itemsize, RECORD.itemsize, SHARD.itemsize) == (128, 32, 48)


def test_an_empty_index():
    empty = Index(build(Shard("a.tar", 0), [], []), "empty")
    assert empty.n_samples == 0 and empty.classes == []
    both = Index(join([empty, Index(some_index(1, 2, 0), "two"), empty]), "all")
    assert (both.n_samples, both.n_shards) == (2, 3) and both.name(1) == "c/0-1-ü.jpg"
    with pytest.raises(PackError, match="no index to join"):
        join([])
    with pytest.raises(PackError, match="different classes or rows"):
        join([empty, Index(WHOLE, "whole")])


def with_crc(data):
    data[80:84] = bytes(4)
    data[80:84] = zlib.crc32(data[:128]).to_bytes(4, "little")
    return bytes(data)


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=9)),
                     max_size=4),
    end=st.integers(-40, 40),
)
@example(changes=[], end=0)
def test_mutated_indices(changes, end):
    """A changed index raises PackError, or everything in it is within its bounds."""
    data = bytearray(WHOLE[: len(WHOLE) + min(end, 0)] + bytes(max(end, 0)))
    for at, text in changes:
        data[at : at + len(text)] = text
    try:
        index = Index(with_crc(data), "mutated")
    except PackError as error:
        assert str(error).startswith("mutated: ")
        assert changes or end
        return
    assert len(index.classes) == len(index._class_names)
    for i in range(index.n_samples):
        place = index.place(i)
        assert 0 <= place.shard < index.n_shards and -1 <= place.label < len(index.classes)
        assert place.offset + place.bytes <= int(index.shards["bytes"][place.shard])
        assert index.name(i) is not None
        rows = index.restart_index_of(i)
        assert not rows or 0 < rows[0] <= rows[-1] < place.bytes
        if place.interval:
            assert place.width > 0 and place.height > 0
    for k in range(index.n_shards):
        name = index.shard_name(k)
        assert not os.path.isabs(name) and ".." not in name.split("/")


@pytest.mark.parametrize("name", ["/etc/passwd", "../up.tar", "a/../../b", ""])
def test_names_of_shards_stay_within_the_folder(name):
    with pytest.raises(PackError, match="is not a path within"):
        Index(build(Shard(name, 10), [], []), "x")


@pytest.mark.parametrize("field, value", [
    ("offset", 1 << 63), ("offset", 5513), ("bytes", 5513), ("shard", 2), ("label", 3),
    ("label", -2), ("name", 1 << 20), ("interval", 0), ("interval", 4), ("flags", 64),
    ("flags", 2), ("width", 0), ("height", 0),
])
def test_each_field_is_checked(field, value):
    data = bytearray(WHOLE)
    records = np.frombuffer(data, RECORD, 15, 128)
    records[7][field] = value
    with pytest.raises(PackError, match="record of sample 7 is damaged"):
        Index(bytes(data), "x")


MANY = """
import resource, sys
from feedmill.packing.index import Index
Index.open(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
index = Index.open(sys.argv[1])
assert index.n_samples == 1_000_000 and len(index.classes) == 1000
assert index.name(999_999) == "n00000999/n00000999_00009999.JPEG"
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_million_samples_open_at_once(tmp_path):
    """Opens a large index in little memory, without a loop over the samples."""
    n, classes = 10_000, [f"n{k:08}" for k in range(1000)]
    part = Index(build(
        Shard("shard-000000.tar", 2_000_000_000),
        [Sample(f"{classes[i // 10]}/{classes[i // 10]}_{i:08}.JPEG", 512 + 1024 * i, 900, i // 10,
                500, 375, 21, 3) for i in range(n)], classes, rows_per_sample=8,
    ), "part")
    parts = [part] * 100
    (tmp_path / "index.fmp").write_bytes(join(parts))
    (tmp_path / "small.fmp").write_bytes(WHOLE)
    out = subprocess.run(
        [sys.executable, "-c", MANY, tmp_path / "index.fmp", tmp_path / "small.fmp"],
        capture_output=True, text=True, check=True,
    ).stdout
    assert float(out) < 100
