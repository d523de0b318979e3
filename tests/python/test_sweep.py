"""The command `feedmill sweep`: the model of what limits a step, measurements, and the table."""

import json
import math

import helpers
import pytest
from feedmill.cli import cli, measure
from feedmill.cli import sweep as sweep_module
from feedmill.cli import sweep_model as model
from feedmill.cli.sweep_model import NOT_KNOWN, Rates, given, measured
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

# ---- the model -----------------------------------------------------------------------------------

POSITIVE = st.floats(1e-3, 1e12)


def numbers(values=POSITIVE):
    """A strategy for numbers from any source, and for unknown numbers."""
    sources = st.sampled_from(model.SOURCES[:3])
    return st.just(NOT_KNOWN) | st.builds(model.Number, values, sources)


KNOWN = st.builds(model.Number, POSITIVE, st.sampled_from(model.SOURCES[:3]))
RATES = st.builds(
    Rates,
    sample_bytes=numbers(),
    delivered_bytes=numbers(),
    storage=numbers(),
    cpu=st.dictionaries(st.integers(1, 256), KNOWN, max_size=4),
    memory=numbers(),
    copy=numbers(),
    gpu_preprocessing=st.booleans(),
)


@settings(deadline=None, max_examples=300)
@drawn(RATES, st.integers(1, 4096), numbers(st.floats(1e-6, 1e4)),
       st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_properties_of_the_model(rates, batch_size, step_s, threads):
    rows = [
        model.cell(model.supplies(rates, n), batch_size, n, step_s) for n in sorted(threads)
    ]
    for row in rows:
        found = model.supplies(rates, row.threads)
        known = {stage: one.value for stage, one in found.items() if one.known}
        assert all(math.isfinite(value) and value > 0 for value in known.values())
        assert row.supply.value == min(known.values(), default=None)
        assert row.prepare_s.known == row.supply.known == bool(known)
        if step_s.known:
            known[model.GPU] = row.demand.value
        if row.binding is None:
            assert not set(known) - {model.GPU}
        else:
            assert known[row.binding] == min(known.values())
        assert row.utilization.known == (step_s.known and row.supply.known)
        if row.utilization.known:
            assert 0 <= row.utilization.value <= 1
            assert (row.utilization.value == 1) or row.binding != model.GPU
    for fewer, more in zip(rows, rows[1:]):
        if fewer.supply.known:
            assert fewer.supply.value <= more.supply.value
            assert fewer.prepare_s.value >= more.prepare_s.value
        if fewer.utilization.known:
            assert fewer.utilization.value <= more.utilization.value


@settings(deadline=None, max_examples=300)
@drawn(RATES, POSITIVE)
def test_number_of_threads_that_keeps_up(rates, demand):
    """That number keeps up, one less does not. If no number does, the named stage is too slow."""
    enough = model.threads_that_keep_up(rates, demand)

    def limits(threads):
        found = model.supplies(rates, threads)
        return {stage: one.value for stage, one in found.items() if one.known}

    if enough.threads:
        assert min(limits(enough.threads).values()) >= demand
        assert enough.threads == 1 or limits(enough.threads - 1)[model.CPU] < demand
    elif enough.threads == 0:
        assert rates.gpu_preprocessing and min(limits(1).values(), default=demand) >= demand
    elif enough.stopped_by:
        assert limits(model.MOST_THREADS)[enough.stopped_by] < demand
    else:
        assert not rates.cpu


def test_a_measurement_applies_to_its_number_of_threads():
    cpu = {1: measured(100.0), 4: measured(300.0)}
    assert model.cpu_supply(cpu, 1) == measured(100.0)
    assert model.cpu_supply(cpu, 2) == (200.0, model.MODELLED)
    assert model.cpu_supply(cpu, 3) == (300.0, model.MODELLED)
    assert model.cpu_supply(cpu, 4) == measured(300.0)
    assert model.cpu_supply(cpu, 8) == (600.0, model.MODELLED)
    assert model.cpu_supply({}, 8) == NOT_KNOWN


def test_supply_of_each_stage():
    rates = Rates(given(1e5), given(6e5), given(1e9), {1: given(1000.0)}, given(16e9), given(12e9))
    assert {stage: one.value for stage, one in model.supplies(rates, 2).items()} == {
        "storage": 1e4, "CPU": 2e3, "memory bandwidth": 1e4, "copy": 2e4
    }
    on_gpu = Rates(given(1e5), given(6e5), given(1e9), {1: given(1000.0)}, given(16e9),
                   given(12e9), gpu_preprocessing=True)
    assert {stage: one.value for stage, one in model.supplies(on_gpu, 2).items()} == {
        "storage": 1e4, "memory bandwidth": 4e4, "copy": 1.2e5
    }


def test_the_source_of_a_result():
    assert model.worst(["measured", "given"]) == "given"
    assert model.worst(["given", "modelled", "measured"]) == "modelled"
    rates = Rates(measured(1e5), given(6e5), measured(1e9), {1: measured(1000.0)})
    row = model.cell(model.supplies(rates, 4), 64, 4, given(0.1))
    assert (row.binding, row.prepare_s.source, row.utilization) == ("GPU", "modelled",
                                                                    (1.0, "modelled"))


# ---- the command: what if ------------------------------------------------------------------------


def sweep(capsys, *words):
    """The JSON that the command prints."""
    assert cli.main(["sweep", *map(str, words), "--json"]) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text and "NaN" not in text
    return json.loads(text)


def table(capsys, *words):
    """The text that the command prints: (rows of the table as lists of words, other lines)."""
    assert cli.main(["sweep", *map(str, words)]) == 0
    text = capsys.readouterr().out
    assert "inf" not in text and "nan" not in text
    lines = text.splitlines()
    rows = [line.split() for line in lines if line.split() and line.split()[0].isdecimal()]
    return rows, [line for line in lines if line.split() and not line.split()[0].isdecimal()]


def keeps_up(lines):
    """The line that says how many threads keep up."""
    (line,) = (line for line in lines if line.startswith("threads that keep up"))
    return line


@pytest.mark.parametrize(
    ("prepare_ms", "step_ms", "percent"), [(64, 11.74, "18.3"), (35, 20, "57.1"), (9, 10, "100.0")]
)
def test_utilization_by_a_given_time(capsys, prepare_ms, step_ms, percent):
    """At 1,000 images per second and core, a batch takes one ms per image."""
    rows, lines = table(capsys, "--prepare-ms", prepare_ms, "--step-ms", step_ms)
    assert [row[-1] for row in rows] == [f"{percent}%g"]
    assert lines[-1].startswith("preparing keeps up") == (percent == "100.0")
    rows, _ = table(capsys, "--cpu-rate", 1000, "--threads", 1, "--batch-sizes", prepare_ms,
                    "--step-ms", step_ms)
    assert [row[-1] for row in rows] == [f"{percent}%g"]
    assert rows[0][-2] == ("GPU" if percent == "100.0" else "CPU")


def test_one_time_for_each_batch_size(capsys):
    result = sweep(capsys, "--prepare-ms", "35,64", "--step-ms", "20,11.74", "--batch-sizes",
                   "32,64", "--sample-bytes", "1e5")
    shares = [row["gpu_utilization"]["value"] for row in result["rows"]]
    assert shares == [pytest.approx(20 / 35), pytest.approx(11.74 / 64)]
    first = result["rows"][0]
    assert first["demand_gb_per_s"] == {"value": pytest.approx(32e5 / 0.02 / 1e9),
                                        "source": "given"}
    assert first["supply_gb_per_s"]["value"] == pytest.approx(32e5 / 0.035 / 1e9)
    assert (first["threads"], first["binding"], result["keeps_up"]) == (None, "preparing", [])


def test_unknown_numbers_are_shown_as_unknown(capsys):
    rows, lines = table(capsys, "--cpu-rate", 1000, "--threads", "1,4", "--step-ms", 32)
    assert rows == [
        ["64", "1", "32.00g", "64.00g", "unknown", "unknown", "CPU", "50.0%g"],
        ["64", "4", "32.00g", "16.00~", "unknown", "unknown", "GPU", "100.0%~"],
    ]
    for stage in ("storage", "memory bandwidth", "copy"):
        assert any(line.startswith(f"note: the supply of {stage} is unknown, so it is not "
                                   "considered as the bottleneck") for line in lines)
    assert any(line.split()[:2] == ["storage", "unknown:"] for line in lines)
    # Without any rate, not even the limiting stage is known.
    result = sweep(capsys, "--storage-rate", 1, "--step-ms", 32)
    assert {row["binding"] for row in result["rows"]} == {"unknown"}
    assert result["rows"][0]["gpu_utilization"] == {"value": None, "source": "unknown"}
    assert result["rows"][0]["prepare_ms"] == {"value": None, "source": "unknown"}
    assert result["keeps_up"][0]["threads"] is None
    _, lines = table(capsys, "--storage-rate", 1, "--step-ms", 32)
    assert "unknown at batch 64" in keeps_up(lines)
    assert any("storage is unknown, as the size of a sample is" in line for line in lines)


def test_without_a_step_time_only_supply_is_shown(capsys):
    rows, lines = table(capsys, "--cpu-rate", 1000, "--sample-bytes", 1e5, "--threads", "1,2")
    assert rows == [["64", "1", "64.00g", "0.100g", "1,000g", "CPU"],
                    ["64", "2", "32.00~", "0.200~", "2,000~", "CPU"]]
    assert not any("keep" in line for line in lines)


def test_large_medical_samples(capsys):
    """With 5 MB per sample, a fast disk limits the rate, whatever the number of threads."""
    words = ["--sample-bytes", "5e6", "--cpu-rate", 20, "--storage-rate", 1, "--step-ms", "640,160",
             "--batch-sizes", "64,64", "--threads", "2,5,64"]
    rows, lines = table(capsys, *words)
    assert [row[6] for row in rows] == ["CPU", "GPU", "GPU", "CPU", "CPU", "storage"]
    assert rows[5][2:8] == ["160.00g", "320.00~", "2.000g", "1.000~", "storage", "50.0%~"]
    assert keeps_up(lines) == ("threads that keep up: 5 at batch 64 (100 img/s), none at batch 64 "
                               "(400 img/s): storage delivers 200")


def test_preprocessing_on_the_gpu(capsys):
    """There is no CPU stage, and one row per batch size. Encoded bytes are copied, not pixels."""
    words = ["--sample-bytes", "1e5", "--cpu-rate", 500, "--storage-rate", 1, "--copy-rate", 2,
             "--step-ms", 8]
    on_cpu = sweep(capsys, *words, "--threads", 1)
    assert on_cpu["rows"][0]["binding"] == "CPU"
    on_gpu = sweep(capsys, *words, "--gpu-preprocessing")
    (row,) = on_gpu["rows"]
    assert (row["binding"], row["threads"]) == ("GPU", None)
    assert row["supply_samples_per_s"]["value"] == 1e4  # storage; the copy reaches 20,000
    assert on_gpu["keeps_up"][0]["threads"] == 0
    slow_copy = sweep(capsys, *words[:-4], "--copy-rate", 0.5, "--gpu-preprocessing")
    assert slow_copy["rows"][0]["binding"] == "copy"
    assert slow_copy["rows"][0]["supply_samples_per_s"]["value"] == 5000
    _, lines = table(capsys, *words, "--gpu-preprocessing")
    assert "none needed at batch 64" in keeps_up(lines)


def test_smaller_batches_in_memory_are_copied_faster(capsys):
    words = ["--cpu-rate", 1e6, "--copy-rate", 6.02112, "--sample-bytes", 1]
    rates = [
        sweep(capsys, *words, *more)["rows"][0]["supply_samples_per_s"]["value"]
        for more in ([], ["--dtype", "float16"], ["--dtype", "uint8"], ["--size", "448"],
                     ["--delivered-bytes", "602112e1"])
    ]
    assert rates == [pytest.approx(rate) for rate in (1e4, 2e4, 4e4, 2500, 1e3)]


# ---- the command: measured -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Makes measurements just long enough to give a number."""
    monkeypatch.setattr(sweep_module, "_DECODE_S", 0.2)
    monkeypatch.setattr(measure, "_MEMORY_BYTES", 1 << 20)


def test_measured_on_a_folder(capsys, small_images, monkeypatch):
    monkeypatch.setattr(sweep_module.machine, "load_note", lambda: "busy")
    monkeypatch.setattr(sweep_module.native, "usable_cpus", lambda: 2)
    result = sweep(capsys, small_images, "--threads", "1,2,8", "--batch-sizes", "8,16",
                   "--step-ms", "5", "--size", 32)
    sizes = [path.stat().st_size for path in small_images.rglob("*.jpg")]
    assert result["sample_bytes"]["value"] == pytest.approx(sum(sizes) / len(sizes))
    assert result["sample_bytes"]["source"] == "measured"
    assert result["delivered_bytes"]["value"] == 3 * 32 * 32 * 4
    assert result["bytes_per_s"]["memory bandwidth"]["source"] == "measured"
    storage = result["bytes_per_s"]["storage"]
    assert storage["source"] == ("unknown" if storage["value"] is None else "measured")
    assert storage["how"]
    by_threads = result["cpu_samples_per_s"]["by_threads"]
    assert set(by_threads) == {"1", "2"}
    assert all(one["value"] > 0 and one["source"] == "measured" for one in by_threads.values())
    assert [(row["batch_size"], row["threads"]) for row in result["rows"]] == [
        (batch_size, threads) for batch_size in (8, 16) for threads in (1, 2, 8)
    ]
    for row in result["rows"]:
        assert 0 < row["gpu_utilization"]["value"] <= 1
        assert row["binding"] in ("storage", "CPU", "memory bandwidth", "copy", "GPU")
    assert any("2 usable CPUs here: rows with more threads are modelled" in note
               for note in result["notes"])
    assert "busy" in result["notes"]
    assert len(result["keeps_up"]) == 2


def test_given_rates_are_not_measured(capsys, small_images, monkeypatch):
    for name in ("read_rates", "decode_rate", "try_natively", "memory_rate", "copy_rate"):
        monkeypatch.setattr(measure, name, None)
    result = sweep(capsys, small_images, "--storage-rate", 1, "--cpu-rate", 1000, "--copy-rate", 10,
                   "--memory-rate", 20, "--threads", 1)
    assert result["sample_bytes"]["source"] == "measured"
    assert {one["source"] for one in result["bytes_per_s"].values()} == {"given"}
    assert result["rows"][0]["binding"] == "CPU"


def test_a_measured_rate_is_scaled_to_other_sizes(capsys, small_images, monkeypatch):
    monkeypatch.setattr(measure, "decode_rate",
                        lambda paths, threads, *_: measure.Decoding(threads, 9, 1e-3, 1e-3))
    words = [small_images, "--threads", 1, "--storage-rate", 1]
    result = sweep(capsys, *words)
    mean = result["sample_bytes"]["value"]
    assert result["rows"][0]["supply_samples_per_s"] == {"value": 1000.0, "source": "measured"}
    result = sweep(capsys, *words, "--sample-bytes", 10 * mean)
    assert result["rows"][0]["supply_samples_per_s"] == {"value": pytest.approx(100),
                                                         "source": "modelled"}
    assert "scaled from" in result["cpu_samples_per_s"]["how"]


def test_storage_cold_or_warm(capsys, small_images, monkeypatch):
    reading = measure.Reading(n_files=40, n_bytes=4000, cold=1e6, cold_in_flight=8, warm=1e9)
    monkeypatch.setattr(measure, "read_rates", lambda *_: reading)
    words = [small_images, "--cpu-rate", 1e9, "--threads", 1, "--sample-bytes", 1000]
    result = sweep(capsys, *words)
    assert result["rows"][0]["binding"] == "storage"
    assert result["rows"][0]["supply_samples_per_s"] == {"value": 1000.0, "source": "given"}
    assert sweep(capsys, *words, "--warm")["bytes_per_s"]["storage"]["value"] == 1e9
    reading.cold, reading.why_not_cold = None, "somebody reads them"
    result = sweep(capsys, *words)
    assert result["bytes_per_s"]["storage"]["value"] is None
    assert "somebody reads them" in result["bytes_per_s"]["storage"]["how"]
    assert result["rows"][0]["binding"] != "storage"


def test_files_that_are_not_decoded_natively(capsys, tmp_path):
    helpers.save_jpeg(tmp_path / "a.jpg", 40, 30)
    helpers.save_bare_jpeg(tmp_path / "bare.jpg", 40, 30)
    result = sweep(capsys, tmp_path, "--threads", 1, "--step-ms", 10)
    assert any(note.startswith("50.0% of the files tried go through Pillow") and "Huffman" in note
               for note in result["notes"])
    (tmp_path / "a.jpg").unlink()
    result = sweep(capsys, tmp_path, "--threads", 1, "--step-ms", 10)
    assert result["cpu_samples_per_s"]["by_threads"] == {}
    assert result["rows"][0]["binding"] != "CPU"
    assert any("the supply of CPU is unknown" in note for note in result["notes"])


def test_an_image_size_that_is_not_supported(capsys, small_images):
    with pytest.raises(SystemExit) as caught:
        cli.main(["sweep", str(small_images), "--size", "100000", "--storage-rate", "1"])
    assert caught.value.code == 2
    assert "height is 100000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "without SRC nothing is measured: give SRC, or --prepare-ms, or at least one of "
             "--storage-rate"),
        (["/nowhere/at/all"], "/nowhere/at/all is not a folder that can be read: No such file"),
        (["{}"], "contains no images"),
        (["--cpu-rate", "0"], "'0' is not a number above 0"),
        (["--cpu-rate", "inf"], "'inf' is not a number above 0"),
        (["--cpu-rate", "5", "--batch-sizes", "32,x"], "'x' is not a whole number above 0"),
        (["--cpu-rate", "5", "--threads", "0"], "'0' is not a whole number above 0"),
        (["--cpu-rate", "5", "--batch-sizes", "1,2,3", "--step-ms", "1,2"],
         "--step-ms has 2 numbers for 3 batch sizes"),
        (["{}", "--prepare-ms", "5", "--cpu-rate", "5", "--gpu-preprocessing"],
         "--prepare-ms includes all of preparing: leave out SRC, --gpu-preprocessing, --cpu-rate"),
    ],
)
def test_bad_usage(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        cli.main(["sweep", *[word.format(tmp_path) for word in words]])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
