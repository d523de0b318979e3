"""The command `feedmill doctor`: the machine, the survey of a folder, and the suggestions."""

import json
import os
import sys
from dataclasses import replace

import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.cli import advice, cli, doctor, folder_check, measure, missing
from feedmill.cli.survey import sample, survey
from feedmill.system import machine, peer_processes


@pytest.fixture
def root(tmp_path):
    """A function that writes a file of /proc or /sys below the test's own root folder."""

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        return str(tmp_path)

    return write


# ---- facts about the machine ---------------------------------------------------------------------

V1 = "5:memory:/job/step\n2:cpu,cpuacct:/job/step\n0::/\n"
V2 = "0::/job/step\n"


def test_no_quota(root, tmp_path):
    assert machine.cpu_quota(str(tmp_path)) is None  # /proc/self/cgroup does not exist
    root("proc/self/cgroup", V2)
    root("sys/fs/cgroup/job/cpu.max", "max 100000\n")
    assert machine.cpu_quota(str(tmp_path)) is None
    root("proc/self/cgroup", V1)
    assert machine.cpu_quota(root("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")) is None


def test_quota_of_version_2(root, tmp_path):
    """The lowest quota of all parent groups applies, and that group's throttling is reported."""
    root("proc/self/cgroup", V2)
    root("sys/fs/cgroup/job/step/cpu.max", "400000 100000\n")
    root("sys/fs/cgroup/job/cpu.max", "150000 100000\n")
    root("sys/fs/cgroup/job/cpu.stat", "usage_usec 7\nnr_throttled 12\nthrottled_usec 2500000\n")
    assert machine.cpu_quota(str(tmp_path)) == (1.5, 2, 2.5, 12)


@pytest.mark.parametrize("place", ["cpu", "cpu,cpuacct"])
def test_quota_of_version_1(root, tmp_path, place):
    """In a container that sees only its part of the tree, the mount's root is the group."""
    root("proc/self/cgroup", V1)
    root(f"sys/fs/cgroup/{place}/cpu.cfs_quota_us", "50000\n")
    root(f"sys/fs/cgroup/{place}/cpu.cfs_period_us", "100000\n")
    root(f"sys/fs/cgroup/{place}/cpu.stat", "nr_throttled 3\nthrottled_time 1500000000\n")
    assert machine.cpu_quota(str(tmp_path)) == (0.5, 1, 1.5, 3)


def test_the_quota_limits_the_native_count_of_cpus():
    """Python and the native library read the same files."""
    quota = machine.cpu_quota()
    n_affine = len(peer_processes.usable_cpus())
    limit = n_affine if quota is None else min(n_affine, quota.cpus)
    assert native.usable_cpus() == max(1, int(limit))


MEMINFO = "MemTotal:  16000000 kB\nMemFree:  1 kB\nMemAvailable:  8000000 kB\n"


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (V2, {"sys/fs/cgroup/job/memory.max": "4096000000\n",
              "sys/fs/cgroup/job/memory.current": "3000000000\n",
              "sys/fs/cgroup/job/memory.stat": "anon 1\nfile 1000000000\n"}),
        (V1, {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096000000\n",
              "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "3000000000\n",
              "sys/fs/cgroup/memory/job/memory.stat": "cache 5\ntotal_cache 1000000000\n"}),
    ],
)
def test_memory(root, tmp_path, groups, files):
    root("proc/self/cgroup", groups)
    root("proc/meminfo", MEMINFO)
    total, available = 16_384_000_000, 8_192_000_000
    assert machine.memory(str(tmp_path)) == machine.Memory(total, available, None, available)
    for path, text in files.items():
        root(path, text)
    found = machine.memory(str(tmp_path))
    assert found == machine.Memory(total, available, 4_096_000_000, 2_096_000_000)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, []),
        ({"proc/sys/kernel/io_uring_disabled": "0\n"}, []),
        ({"proc/sys/kernel/io_uring_disabled": "2\n"},
         ["is disabled on this system (kernel.io_uring_disabled=2)"]),
        ({"proc/sys/kernel/io_uring_disabled": "1\n", "proc/sys/kernel/io_uring_group": "-1\n"},
         ["(kernel.io_uring_disabled=1): give this process CAP_SYS_ADMIN, or enable it"]),
        ({"proc/sys/kernel/io_uring_disabled": "1\n", "proc/sys/kernel/io_uring_group": "7\n"},
         ["CAP_SYS_ADMIN, or add its user to the group with id 7, or"]),
        ({"proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, ["runs under a seccomp filter"]),
        ({"proc/self/status": "Name:\tx\nSeccomp:\t0\n"}, []),
    ],
)
def test_reasons_against_io_uring(root, tmp_path, files, words):
    for path, text in files.items():
        root(path, text)
    found = machine.why_no_uring(str(tmp_path))
    assert len(found) == len(words) and all(word in text for word, text in zip(words, found))


def test_mounts(root, tmp_path):
    """A file is on the mount with the longest path above it; of several there, on the last one."""
    text = (
        "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "22 21 0:5 / /data rw master:1 - nfs4 server:/export rw\n"
        "23 22 0:6 / /data/fast\\040disk rw - xfs /dev/sdb rw\n"
        "24 22 0:7 / /data rw - fuse.sshfs host:/x rw\n"
        "25 21 0:8 / /dev/shm rw - tmpfs tmpfs rw\n"
    )
    where = root("proc/self/mountinfo", text)
    assert machine.mount_of("/etc", where) == ("/", "ext4", "/dev/vda")
    assert machine.mount_of("/database", where).kind == "ext4"
    assert machine.mount_of("/data/train", where) == ("/data", "fuse.sshfs", "host:/x")
    assert machine.mount_of("/data/fast disk/x", where) == ("/data/fast disk", "xfs", "/dev/sdb")
    kinds = [machine.mount_of(path, where) for path in ("/", "/data", "/dev/shm/x")]
    assert [machine.is_high_latency(one) for one in kinds] == [False, True, False]
    assert [machine.is_in_memory(one) for one in kinds] == [False, False, True]
    assert machine.mount_of("/", str(tmp_path / "nothing")) is None


def test_a_busy_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (4.0, 9.0, 9.0))
    assert machine.load_note() == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (6.5, 0.0, 0.0))
    assert "load average 6.5 on 4 CPUs" in machine.load_note()


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(folder_check, "_DECODE_S", 0.2)


def check(capsys, *words):
    status = cli.main(["doctor", *map(str, words)])
    text = capsys.readouterr().out
    crowded = any(line.startswith("CPU contention:") for line in text.splitlines())
    return status, crowded, text


def test_the_facts_of_the_machine(capsys):
    _, _, text = check(capsys)
    names = [line.split()[0] for line in text.splitlines()]
    wanted = ["feedmill", "kernel", "CPUs", "SIMD", "JPEG", "reader", "memory", "memlock",
              "/dev/shm", "torch"]
    assert [name for name in names if name in wanted] == wanted
    assert f"libjpeg-turbo {native.jpeg_version()}, " in text
    assert os.uname().release in text
    facts = json.loads(check(capsys, "--json")[2])
    assert facts["libjpeg_turbo"].count(".") >= 2 and facts["libjpeg_turbo"][0].isdecimal()
    assert isinstance(facts["own_huffman_decoder"], bool)
    assert facts["cpus"]["usable"] == native.usable_cpus()
    assert facts["memory"]["total"] >= facts["memory"]["available"] > 0
    assert facts["reader"] in ("uring", "pread") and "folder" not in facts


def test_why_io_uring_is_not_used(capsys, monkeypatch):
    monkeypatch.setattr(machine, "why_no_uring", lambda: ["so it is"])
    monkeypatch.setenv("FEEDMILL_READER", "pread")
    monkeypatch.setenv("FEEDMILL_CPU", "scalar")
    _, _, text = check(capsys)
    assert "reader     pread" in text and "so it is" in text
    assert "SIMD       scalar (FEEDMILL_CPU=scalar)" in text


def test_wrong_environment_variables(capsys, monkeypatch):
    monkeypatch.setenv("FEEDMILL_CPU", "mmx")
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor"])
    assert caught.value.code == 2
    assert "FEEDMILL_CPU is 'mmx'" in capsys.readouterr().err


@pytest.fixture
def mixed(tmp_path):
    """Six JPEGs, two images for Pillow, a text, a dangling link, and a link to a parent folder."""
    for i in range(6):
        helpers.save_jpeg(tmp_path / "a" / f"{i}.jpg", 60, 40, seed=i)
    helpers.save_bare_jpeg(tmp_path / "b" / "bare.jpeg", 60, 40)
    helpers.Image.new("RGB", (30, 30)).save(tmp_path / "b" / "c.BMP")
    (tmp_path / "b" / "labels").write_text("none")
    (tmp_path / "b" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    return tmp_path


def test_a_folder_as_json(capsys, mixed):
    status, crowded, text = check(capsys, mixed, "--json")
    facts = json.loads(text)
    assert status == bool(facts["crowded"])
    found = facts["folder"]
    assert {suffix: one["files"] for suffix, one in found["by_type"].items()} == {
        ".jpg": 6, ".jpeg": 1, ".bmp": 1, "no suffix": 1
    }
    paths = [path for path in mixed.rglob("*") if path.is_file()]
    assert (found["files"], found["images"], found["complete"]) == (9, 8, True)
    assert found["bytes"] == sum(path.stat().st_size for path in paths)
    assert found["unreadable"] == 1
    assert "gone.jpg" in next(iter(found["unreadable_named"]))
    assert found["mount"]["kind"]
    reading = found["reading"]
    assert reading["n_files"] == 8 and reading["n_bytes"] > 0 and reading["warm"] > 0
    assert (reading["cold"] is None) == bool(reading["why_not_cold"])
    decoding = found["decoding"]
    assert (decoding["tried"], decoding["rejected"]) == (8, 2)
    assert set(decoding["rejected_why"]) == {"a BMP image, not a JPEG",
                                             "a JPEG without its Huffman tables"}
    assert decoding["images_per_s_one_core"] > 0 and decoding["images_per_s_all_cpus"] > 0
    settings = [one["setting"] for one in facts["suggestions"]]
    assert settings[:5] == ["num_workers", "prefetch_factor", "pin_memory", "reader", "page cache"]
    assert all(one["value"] and one["why"] for one in facts["suggestions"])


def test_a_folder_as_text(capsys, mixed):
    status, crowded, text = check(capsys, mixed)
    assert status == crowded
    assert "files      9, " in text and "6 .jpg" in text
    assert "unreadable 1 (" in text and "gone.jpg: No such file or directory" in text
    for name in ("on", "cold read", "warm read", "decode"):
        assert f"\n  {name:<10} " in text
    assert "all but 2 of the 8 files tried (25.0% go through Pillow: " in text
    assert f"suggested for {mixed}:" in text


def test_folders_with_little_in_them(capsys, tmp_path):
    _, _, text = check(capsys, tmp_path)
    assert "files      0, 0 bytes (none)" in text
    assert "decode     unknown: there is no readable image" in text
    (tmp_path / "a.tar").write_bytes(b"x" * 5000)
    _, _, text = check(capsys, tmp_path)
    assert "1 .tar 5.0 kB" in text and "warm read  unknown" not in text
    assert "decode     unknown: there is no readable image" in text
    (tmp_path / "a.jpg").write_text("no image")
    (tmp_path / "b.jpg").write_text("")
    _, _, text = check(capsys, tmp_path)
    assert "decode     unknown: the native decoder supports none of the files" in text
    assert "all but 2 of the 2 files tried" in text


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_wrong_folders(capsys, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", str(tmp_path / place)])
    assert caught.value.code == 2
    assert f"{tmp_path / place} is not a folder that can be read: N" in capsys.readouterr().err


def test_a_survey_keeps_its_time_limit(small_images):
    found = survey(small_images, -1.0)
    assert not found.complete and len(found.files) < 40
    assert survey(small_images, 600).complete


def test_a_sample_of_files_is_bounded():
    files = [(str(i), 1000) for i in range(100_000)]
    assert len(set(sample(files))) == 400
    large = [(str(i), 100 << 20) for i in range(9)]
    assert len(sample(large)) == 1
    assert sample([]) == []


def test_files_that_vanish_or_stay_in_the_page_cache(tmp_path, monkeypatch):
    paths = [str(helpers.save_jpeg(tmp_path / f"{i}.jpg", 40, 40)) for i in range(4)]
    gone = str(tmp_path / "gone.jpg")
    monkeypatch.setattr(measure, "_is_cached", lambda path: True)
    monkeypatch.setattr(measure, "_device_bytes", lambda: 0)
    reading = measure.read_rates([*paths, gone], 600)
    assert list(reading.unreadable) == [gone]
    assert reading.cold is None and "4 of 4 files stay in memory" in reading.why_not_cold
    assert reading.warm > 0 and reading.n_files == 4
    monkeypatch.setattr(measure, "_is_cached", lambda path: False)
    reading = measure.read_rates(paths, 600)
    assert reading.cold > 0 and reading.cold_file_s > 0 and not reading.why_not_cold
    # Where mincore() shows all pages as cached, the process's read counters may show a cold read.
    counts = iter([0, sum(os.path.getsize(path) for path in paths)])
    monkeypatch.setattr(measure, "_is_cached", lambda path: True)
    monkeypatch.setattr(measure, "_device_bytes", lambda: next(counts))
    assert measure.read_rates(paths, 600).cold > 0
    nothing = measure.read_rates([gone], 600)
    assert (nothing.cold, nothing.warm, nothing.n_files) == (None, None, 0)


def test_detection_of_the_page_cache(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    assert measure._is_cached(str(path))
    (tmp_path / "empty").write_bytes(b"")
    assert not measure._is_cached(str(tmp_path / "empty"))
    assert measure._is_cached(str(tmp_path / "nowhere"))  # unknown counts as cached
    assert measure._device_bytes() >= 0


# ---- missing parts of an installation ------------------------------------------------------------

COMPLETE = {
    "reader": "uring", "reader_reason": "io_uring works here", "why_no_uring": [],
    "formats": "JPEG, PNG, WebP", "network": "libcurl/8", "shared_memory": {"total": 8 << 30, "free": 8 << 30},
}


def missing_of(**changes):
    return {one.what: one for one in missing.find_missing({**COMPLETE, **changes})}


@pytest.fixture
def gpu(monkeypatch):
    """A function that simulates a GPU, and makes native.device_count() raise an error."""

    def put(error):
        def device_count(kind):
            assert kind == "cuda"
            if error:
                raise native.Error(error)
            return 1

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(native, "device_count", device_count)

    return put


def test_nothing_is_missing(gpu):
    gpu("")
    assert missing_of() == {}


def test_a_missing_io_uring(monkeypatch):
    monkeypatch.delenv("FEEDMILL_READER", raising=False)
    found = missing_of(reader="pread", reader_reason="too old")["io_uring"]
    assert "too old" in found.why and "Linux 5.19" in found.get
    found = missing_of(reader="pread", reader_reason="refused", why_no_uring=["allow it", "so"])
    assert found["io_uring"].get == "allow it; so"
    monkeypatch.setenv("FEEDMILL_READER", "pread")  # the user's choice
    assert missing_of(reader="pread", reader_reason="asked for") == {}


@pytest.mark.parametrize(("module", "name"), [("torchvision", "torchvision"), ("PIL", "Pillow")])
def test_missing_packages(monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)  # `import` raises ImportError
    found = missing_of()
    assert list(found) == [name] and f"`import {module}` fails" in found[name].why
    assert found[name].get.startswith(f"pip install {name.lower()}")


@pytest.mark.parametrize(
    ("formats", "libraries"),
    [("JPEG, PNG", ["libwebp"]), ("JPEG, WebP", ["libspng"]), ("JPEG", ["libspng", "libwebp"])],
)
def test_missing_formats(formats, libraries):
    found = missing_of(formats=formats)
    assert list(found) == libraries
    assert all("Pillow" in one.why and f"{name}-dev" in one.get for name, one in found.items())


def test_a_missing_plugin_for_cuda(gpu, monkeypatch):
    gpu("libx.so is not there")
    found = missing_of()["CUDA plug-in"]
    assert "libx.so is not there" in found.why
    assert "pip install feedmill-cuda13" in found.get and "nvcc" in found.get
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert missing_of() == {}
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert missing_of() == {}


def test_missing_shared_memory():
    assert "no /dev/shm" in missing_of(shared_memory=None)["space in /dev/shm"].why
    small = missing_of(shared_memory={"total": 64 << 20, "free": 0})["space in /dev/shm"]
    assert "only 67.1 MB" in small.why and "--shm-size" in small.get


def test_missing_parts_are_printed(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "find_missing", lambda facts: [])
    lines = check(capsys)[2].splitlines()
    assert len([line for line in lines if line.startswith("nothing is missing")]) == 1
    assert json.loads(check(capsys, "--json")[2])["missing"] == []
    one = missing.Missing("io_uring", "no reason", "no way")
    monkeypatch.setattr(doctor, "find_missing", lambda facts: [one])
    monkeypatch.setattr(machine, "why_no_uring", lambda: ["told above"])
    monkeypatch.setenv("FEEDMILL_READER", "pread")
    text = check(capsys)[2]
    assert "missing:\n  io_uring: no reason\n    how to get it: no way\n" in text
    assert "told above" not in text  # each is printed once
    assert json.loads(check(capsys, "--json")[2])["missing"] == [
        {"what": "io_uring", "why": "no reason", "get": "no way"}
    ]


# ---- suggestions ---------------------------------------------------------------------------------

FOUND = advice.Findings(
    n_usable=8, n_taken=0, n_processes=1, has_gpu=True, reader="uring",
    reader_reason="io_uring works here", is_high_latency=False, memory_left=10**10,
    shm_bytes=8 << 30, data_bytes=10**9, sample_bytes=1e5, decode_rate=8000.0, cold_rate=1e9,
    cold_file_s=0.002,
)


@pytest.mark.parametrize(
    ("changes", "setting", "value", "words"),
    [
        ({}, "num_workers", "8", "each of the 8 usable CPUs"),
        ({"n_taken": 3}, "num_workers", "5", "less the 3 decode threads"),
        ({"n_taken": 30}, "num_workers", "1", "less the 30 decode threads"),
        ({"n_processes": 4}, "num_workers", "2", "shared by 4 training processes"),
        ({"has_gpu": False}, "num_workers", "8", "use fewer if the training computes on the CPU"),
        ({}, "prefetch_factor", "2", "need 16 reads in flight"),
        ({"cold_file_s": 0.2}, "prefetch_factor", "7", "prefetch 3,584"),
        ({"cold_file_s": 60.0}, "prefetch_factor", "16", "reads in flight"),
        ({"cold_file_s": None}, "prefetch_factor", "2", "is not known"),
        ({}, "pin_memory", "True", "copied to the GPU"),
        ({"has_gpu": False}, "pin_memory", "False", "no GPU"),
        ({}, "reader", '"auto"', "io_uring works here"),
        ({"reader": "pread", "reader_reason": "forbidden", "is_high_latency": True}, "reader",
         '"auto"', "selects pread: forbidden; these files are on high-latency storage"),
        ({}, "page cache", "holds all",
         "from the second epoch on, the speed of storage does not matter"),
        ({"data_bytes": 10**11}, "page cache", "holds a part", "100.0 GB of files do not fit"),
        ({"data_bytes": None}, "page cache", "not known", "not all files were listed"),
        ({}, "first limit", "CPU",
         "storage delivers 10,000 images/s that are not in the page cache"),
        ({"cold_rate": 1e8}, "first limit", "storage", "more threads do not help"),
        ({"cold_rate": None}, "first limit", None, ""),
        ({"shm_bytes": 64 << 20}, "/dev/shm", "1 GB or more", "it has 67.1 MB"),
        ({}, "/dev/shm", None, ""),
    ],
)
def test_suggestions(changes, setting, value, words):
    found = {one.setting: one for one in advice.suggest(replace(FOUND, **changes))}
    assert (setting in found) == (value is not None)
    if value is not None:
        assert found[setting].value == value and words in found[setting].why


def test_the_number_of_processes_from_ranks_or_gpus(monkeypatch, mixed):
    facts = doctor.machine_facts()
    facts["folder"] = folder_check.check_folder(mixed, 1)
    facts["gpus"] = [{"name": "x", "memory_bytes": 1}] * 2
    facts["cpus"]["local_world_size"] = None
    assert doctor._findings(facts).n_processes == 2
    facts["cpus"]["local_world_size"] = "4"
    assert doctor._findings(facts).n_processes == 4
