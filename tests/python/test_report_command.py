"""The command `feedmill report`, which shows logs of runs as text or as an HTML page."""

import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from feedmill.cli.cli import main
from feedmill.profiling.counting.records import CAUSES
from feedmill.profiling.log.reader import LogError, read_log
from feedmill.profiling.page import html_report
from feedmill.profiling.page.run_stats import report_of, stats_of, targets_of, verdict_of
from feedmill.profiling.page.timeline import timeline
from helpers import native_loader

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import write_log
from write_log import made_up_steps, made_up_system, run_line, slow_line, step_lines

EVIL = '/data/<script>alert(1)</script>/&amp;"\'</details>.jpg'


@pytest.fixture
def log(tmp_path):
    """A generated log without totals: 400 steps, system samples, two slow files."""
    steps = made_up_steps(400)
    return write_log.write(
        tmp_path / "run.jsonl", run_line(rank=3), step_lines(steps), made_up_system(steps),
        slow_line("/data/a.jpg", 7), slow_line("/data/b.jpg", 8, read_ms=90),
    )


@pytest.fixture
def real_log(numbered, tmp_path):
    """The log of a loader that ran two epochs, and the loader's stats()."""
    loader = native_loader(numbered, batch_size=8, num_workers=2)
    for _ in range(2):
        for _ in loader:
            pass
    stats = loader.stats()
    path = write_log.write(tmp_path / "real.jsonl", run_line(path="native", threads=2),
                           step_lines(stats.steps), write_log.slow_lines(stats),
                           write_log.stats_line(stats))
    return path, stats


def page_of(path):
    out = path.with_suffix(".html")
    assert main(["report", str(path), "--html", str(out)]) == 0
    return out.read_text("utf-8")


def data_of(page):
    """The numbers in a page's charts, one dict per run."""
    texts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    return [json.loads(text) for text in texts]


class Outline(HTMLParser):
    """Parses a page: collects its text, and elements without a start tag or an end tag."""

    VOID = {"meta", "br", "input", "link", "img"}

    def __init__(self, page):
        super().__init__()
        self.open, self.wrong, self.tags, self.text = [], [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data


# ---- reading -------------------------------------------------------------------------------------


def test_a_log_gives_the_steps_and_totals_of_its_loader(real_log):
    path, stats = real_log
    (run,) = read_log(path)
    assert (run.pid, run.rank, run.place) == (4711, None, "train.py:31")
    assert np.array_equal(run.steps, stats.steps)
    assert stats_of(run) == stats
    assert verdict_of(run) == stats.report().splitlines()[0]


def test_unknown_and_truncated_lines_are_skipped(log):
    lines = log.read_text().splitlines()
    (run,) = read_log(log)
    new = [{"type": "sample", "index": 3}, {"type": "weather", "rain": True}]
    lines[1] = json.dumps(json.loads(lines[1]) | {"new_field": [1]})
    text = "\n".join([*lines[:5], *map(json.dumps, new), lines[5][:20], *lines[5:]])
    log.write_text(text + "\n" + lines[1][:-30])
    (again,) = read_log(log)
    assert np.array_equal(again.steps, run.steps) and again.slow == run.slow


def test_the_slowest_files_are_sorted_and_not_repeated(tmp_path):
    path = write_log.write(
        tmp_path / "run.jsonl", run_line(), slow_line("/a", 1, 10), slow_line("/b", 2, 30),
        slow_line("/a", 1, 50), slow_line("/b", 2, 30),
    )
    (run,) = read_log(path)
    assert [(one["path"], one["read_ns"]) for one in run.slow] == [
        ("/a", 50_000_000), ("/b", 30_000_000)
    ]


def test_lines_of_several_loaders_may_be_mixed(tmp_path):
    steps = made_up_steps(20)
    lines = [line | {"loader": f"4711-{i % 2}"} for i, line in enumerate(step_lines(steps))]
    path = write_log.write(tmp_path / "run.jsonl", run_line(loader="4711-0"),
                           run_line(loader="4711-1", place="train.py:40"), lines,
                           {"type": "lost", "loader": "4711-1", "steps": 5, "samples": 0})
    first, second = read_log(path)
    assert first.steps["step"].tolist() == list(range(0, 20, 2))
    assert second.steps["step"].tolist() == list(range(1, 20, 2))
    assert (first.n_lost, second.n_lost) == (0, 5)
    assert " 5 steps are missing: " in page_of(path)


@pytest.mark.parametrize(("text", "reason"), [
    ("", r"no line of type \"run\""),
    ("\n\n", r"no line of type \"run\""),
    ("hello\n", r":1: not the log of a run: invalid JSON .*'hello'"),
    ("\xff\xd8\xff", ":1: not the log of a run"),
    ("[1]\n", r":1: .*no JSON object with a \"type\""),
    ('{"verdict": "no stall"}\n', r":1: .*no JSON object with a \"type\""),
    ('{"type": "weather"}\n{"type": "step"}\n', r":2: a line of type \"step\" before"),
    ('{"type": "run"}\n{"type": "step", "step": -1}\n', ":2: step is -1; it must be an int from 0"),
    ('{"type": "run"}\n{"type": "step", "epoch": 4294967296}\n', ":2: epoch is 4294967296"),
    ('{"type": "run"}\n{"type": "step", "epoch": "x"}\n', ":2: epoch is 'x'"),
    ('{"type": "run"}\n{"type": "step", "phase": "odd"}\n', ":2: phase is 'odd'; it must be one of"),
])
def test_a_file_that_is_not_a_log_is_refused(tmp_path, capsys, text, reason):
    path = tmp_path / "run.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(LogError, match=reason):
        read_log(path)
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(path)])
    assert "run.jsonl" in capsys.readouterr().err


def test_files_that_cannot_be_read_or_written(tmp_path, log, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path / "none.jsonl")])
    assert "none.jsonl can't be read: No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(log), "--html", str(tmp_path / "none" / "out.html")])
    assert "out.html can't be written: No such file" in capsys.readouterr().err


# ---- text ----------------------------------------------------------------------------------------


def test_the_text_is_the_loaders_own_report(real_log, capsys):
    path, stats = real_log
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == stats.report() + "\n"


def test_a_killed_run_is_reported_from_its_steps(log, capsys):
    assert main(["report", str(log)]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("stalled (no epoch has ended): steps waited ")
    assert "queue for decode; what helps: more decode threads" in first
    assert any("400 batches, 2 epochs started" in row for row in rows)
    (run,) = read_log(log)
    stats = stats_of(run)
    assert (stats.batches, stats.samples, stats.epochs) == (400, 12_800, 2)
    assert stats.decode.n_threads == 2
    assert sum(getattr(stats.waits, name) for name in CAUSES) == stats.waits.data_wait_ns
    assert stats.waits.data_wait_ns < stats.waits.host_wait_ns < stats.waits.wall_ns


def test_waits_of_torchs_path_are_attributed_to_workers(tmp_path, capsys):
    steps = made_up_steps(50, cause="python_ns", wait_ms=30)
    path = write_log.write(tmp_path / "run.jsonl", run_line(path="torch"), step_lines(steps))
    assert main(["report", str(path)]) == 0
    assert ": Python workers; " in capsys.readouterr().out
    assert "Python workers" in page_of(path)


def test_the_page_says_how_many_steps_the_totals_lack(real_log, tmp_path):
    path, stats = real_log
    more = made_up_steps(7)
    lines = [*path.read_text().splitlines(), *map(json.dumps, step_lines(more))]
    path.write_text("\n".join(lines) + "\n")
    assert "its last 7 steps are in the charts" in page_of(path)


def test_a_run_without_a_step(tmp_path, capsys):
    path = write_log.write(tmp_path / "run.jsonl", run_line(),
                           {"type": "system", "clock_ns": 5, "process_cpu": 1.0})
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.startswith("nothing to report: no batch")
    page = page_of(path)
    assert "nothing to report: no batch" in page and "The log has no step" in page
    assert data_of(page) == []


def test_two_ranks(tmp_path, capsys):
    slow, fast = made_up_steps(60, wait_ms=20), made_up_steps(40, wait_ms=0.001)
    logs = [
        write_log.write(tmp_path / f"{rank}.jsonl", run_line(rank=rank, pid=100 + rank),
                        step_lines(steps))
        for rank, steps in enumerate((slow, fast))
    ]
    both = tmp_path / "both.jsonl"
    both.write_text("".join(path.read_text() for path in logs))
    assert main(["report", str(both)]) == 0
    text = capsys.readouterr().out
    assert main(["report", *map(str, logs)]) == 0
    assert capsys.readouterr().out == text
    ranks, one, other = text.split("\n\n")
    assert ranks.splitlines()[1].startswith("straggler: rank 0 held the others back by")
    assert one.startswith("rank 0, train.py:31, pid 100:\nstalled")
    assert other.startswith("rank 1, train.py:31, pid 101:\n")
    page = page_of(both)
    assert [one["n_steps"] for one in data_of(page)] == [60, 40]
    assert "2 runs in this log" in page and 'href="#run1"' in page and 'id="run1"' in page


# ---- the page ------------------------------------------------------------------------------------


def test_the_page_is_complete_and_self_contained(log):
    page = page_of(log)
    outline = Outline(page)
    assert not outline.open and not outline.wrong
    (run,) = read_log(log)
    for wanted in (verdict_of(run), "wait for data under 5 ms", "(AU) above 80%", "CPU 60-80%",
                   "Waits by cause", "queue for decode", "boundary", "p99", "/data/b.jpg",
                   "Glossary", "io_uring works here"):
        assert wanted in outline.text, wanted
    assert outline.text.index("/data/b.jpg") < outline.text.index("/data/a.jpg")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.replace("//data", ""))
    for tag, attributes in outline.tags:
        assert "src" not in attributes and tag not in ("link", "img", "iframe")
    (policy,) = [one["content"] for tag, one in outline.tags if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")


def test_the_page_splits_the_wait_for_storage(log, tmp_path):
    assert "Parts of the wait for storage" not in Outline(page_of(log)).text
    steps = made_up_steps(400)
    steps["storage_first_byte_ns"] = steps["storage_ns"] * 3 // 4
    steps["storage_transfer_ns"] = steps["storage_ns"] - steps["storage_first_byte_ns"]
    steps["storage_local_ns"] = 0
    page = page_of(write_log.write(tmp_path / "remote.jsonl", run_line(), step_lines(steps)))
    outline = Outline(page)
    assert not outline.open and not outline.wrong
    text = outline.text.partition("Parts of the wait for storage")[2]
    assert text.index("waiting for the first byte") < text.index("transferring")
    assert "75%" in text and "throttled by" not in text


def test_the_page_and_the_text_use_the_same_targets(tmp_path):
    steps = made_up_steps(400, wait_ms=30)
    totals = {"type": "stats", "batches": 400, "usable_cpus": 2, "elapsed_ns": 10**10,
              "process_cpu_ns": 14 * 10**9}
    path = write_log.write(tmp_path / "run.jsonl", run_line(), step_lines(steps),
                           made_up_system(steps, gpu=True), totals)
    (run,) = read_log(path)
    page, rows = Outline(page_of(path)).text, report_of(run).splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["missed", "met", "met"]
    for row, state, one in zip(rows, "✗✓✓", targets_of(run), strict=True):
        assert f"{one.name} {one.value}; target: {one.goal}" in row
        assert f"{state} {row.split()[0]}{one.name} {one.goal}{one.value}" in page
    assert "% busy on average" in rows[1] and "70% of 2 CPUs" in rows[2]


def test_the_page_escapes_texts_of_the_log(tmp_path):
    steps = made_up_steps(30)
    odd = EVIL + "\udcff"
    path = write_log.write(
        tmp_path / "<b>run.jsonl",
        run_line(place=EVIL, reader=EVIL, reader_reason=EVIL, cpu=EVIL, feedmill=EVIL,
                 path="native", batch_size=EVIL, slots=EVIL, time=EVIL, threads=EVIL),
        step_lines(steps), slow_line(odd, EVIL),
        {"type": "system", "clock_ns": 10**12, "interval_ns": EVIL, "process_cpu": EVIL,
         "host_cpu": float("inf"), "rss_bytes": 10**400, "gpu": EVIL},
    )
    page = page_of(path)
    outline = Outline(page)
    assert not outline.open and not outline.wrong
    assert [tag for tag, _ in outline.tags].count("script") == 2
    assert page.count("<script>alert") == 0 and html.escape(EVIL) in page
    assert EVIL in outline.text and EVIL + "\\udcff" in outline.text
    assert len(data_of(page)) == 1


def test_template_placeholders_in_a_log_stay_text(tmp_path):
    path = write_log.write(tmp_path / "run.jsonl", run_line(place="{{script}}"),
                           step_lines(made_up_steps(3)))
    assert "{{script}}" in Outline(page_of(path)).text


def test_paths_that_are_not_utf_8(tmp_path, capfd):
    lines = [run_line(rank=0, place="a\udcff"), run_line(rank=1)]
    assert main(["report", str(write_log.write(tmp_path / "run.jsonl", *lines))]) == 0
    assert "a\\udcff" in capfd.readouterr().out


def test_few_steps_have_one_bin_each(log):
    (run,) = read_log(log)
    data = timeline(run, 1000)
    assert (data["n_steps"], data["bin_steps"], len(data["longest"])) == (400, 1, 400)
    assert data["epochs"] == [[0, 0], [200, 1]]
    assert data["worst"]["index"] == run.steps["last_index"].tolist()
    assert list(data["sums"]) == ["compute_ns", "overhead_ns", "storage_ns", "cpu_queue_decode_ns",
                                  "decode_ns"]
    assert data["sums"]["storage_ns"][200] == 40_000
    seconds = len(data["system"]["at"])
    assert seconds == len(run.system)
    assert data["system"]["host_cpu"][0] == pytest.approx(81.4, abs=1)
    assert sorted(data["system"]["at"]) == data["system"]["at"]


def test_many_steps_are_summed_in_bins(tmp_path):
    steps = made_up_steps(10_050)
    path = write_log.write(tmp_path / "run.jsonl", run_line(), step_lines(steps),
                           made_up_system(steps))
    (run,) = read_log(path)
    data = timeline(run, 1000)
    assert data["bin_steps"] == 11 and len(data["longest"]) == 914
    duration = steps["host_wait_ns"] + steps["compute_ns"]
    sums = sum(np.array(values) for values in data["sums"].values())
    assert sums.sum() == pytest.approx(int(duration.sum()) / 1000, rel=1e-4)
    assert sums[5] == pytest.approx(int(duration[55:66].sum()) / 1000, abs=5)
    assert data["longest"][5] == pytest.approx(int(duration[55:66].max()) / 1000, abs=1)
    worst = data["worst"]
    at = worst["position"][5]
    assert at == 55 + int(steps["data_wait_ns"][55:66].argmax())
    assert worst["index"][5] == steps["last_index"][at]
    assert CAUSES[worst["cause"][5]] in ("cpu_queue_decode_ns", "decode_ns")
    assert max(len(values) for values in data["system"].values()) <= 1000


def test_a_page_of_many_steps_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "_MAX_BINS", 2_000)
    path = write_log.write(tmp_path / "run.jsonl", run_line(), step_lines(made_up_steps(8_000)))
    page = page_of(path)
    assert len(data_of(page)[0]["longest"]) == 2_000 and len(page) < 400_000
