"""Opens pages of `feedmill report` in a headless Chromium, uses them, and checks for errors.

    check_report.py [--pictures FOLDER] [LOG ...]

Without LOG it generates three logs: of two ranks, of 60,000 steps, and of a run without steps. A
page must load nothing but its file, log no error, show the verdict, draw its columns, respond to
pointer and keyboard, and fit its window, in light and dark mode, and on wide and phone screens.
Saves screenshots to FOLDER. Exits with 77 if there is no Chromium.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "support"):
    sys.path.insert(0, str(folder))

import chromium  # noqa: E402
import write_log  # noqa: E402
from feedmill.cli.cli import main as feedmill  # noqa: E402
from feedmill.profiling.log.reader import read_log  # noqa: E402
from feedmill.profiling.page.run_stats import verdict_of  # noqa: E402

# As in page.js: the most columns, and the fewest steps that are shown.
MOST_COLUMNS, LEAST_SHOWN = 1000, 8
# The windows by name, with arguments of Tab.look().
LOOKS = {
    "light": {"width": 1280, "height": 900},
    "dark": {"width": 1280, "height": 900, "dark": True},
    "phone": {"width": 390, "height": 844, "phone": True},
    "phone-dark": {"width": 390, "height": 844, "phone": True, "dark": True},
    "huge": {"width": 2560, "height": 1300},
}
# The number of colours in the first chart. An empty canvas has a single colour.
COLORS = """(() => {
    const canvas = document.querySelector(".plots canvas");
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
    return seen.size;
})()"""


def make_logs(folder: Path) -> list[Path]:
    few, storage = write_log.made_up_steps(300), write_log.made_up_steps(
        240, wait_ms=14, cause="storage_ns", seed=3)
    many = write_log.made_up_steps(60_000, epoch_steps=5_000)
    system = write_log.made_up_system
    odd = write_log.slow_line('/data/<img src=x onerror=alert(1)>"/a.jpg')
    return [
        write_log.write(folder / "ranks.jsonl",
                        write_log.run_line(rank=0), write_log.step_lines(few), system(few),
                        odd, write_log.slow_line("/data/b.jpg", 9, 80),
                        write_log.run_line(rank=1, pid=4712), write_log.step_lines(storage),
                        system(storage)),
        write_log.write(folder / "many.jsonl", write_log.run_line(), write_log.step_lines(many),
                        system(many, gpu=True)),
        write_log.write(folder / "none.jsonl", write_log.run_line()),
    ]


def check(tab: chromium.Tab, log: Path, pictures: Path) -> None:
    runs, page = read_log(log), pictures / f"{log.stem}.html"
    assert feedmill(["report", str(log), "--html", str(page)]) == 0
    for name, look in LOOKS.items():
        tab.look(**look)
        tab.open(page)
        heading = tab.run("document.querySelector('h1').textContent")
        assert heading == verdict_of(runs[0]), heading
        fits = tab.run("document.documentElement.scrollWidth <= innerWidth")
        assert fits, f"{page} is wider than its window of {look['width']} pixels"
        tab.picture(pictures / f"{log.stem}-{name}.png")
        complain(tab, page)
        if len(runs[0].steps):
            n_columns = columns(tab)
            room = tab.run("document.querySelector('.plots canvas').clientWidth")
            most = min(len(runs[0].steps), MOST_COLUMNS, room)
            assert most * 0.7 < n_columns <= most, f"{n_columns} columns, room for {most}"
            assert tab.run(COLORS) >= 4, "the chart of steps is empty"
    if len(runs[0].steps):
        use(tab, page, pictures / f"{log.stem}")
    if len(runs) > 1:
        tab.run("location.hash = '#run1'")
        tab.settle()
        script = "document.querySelectorAll('.plots')[1].dataset.columns"
        assert int(tab.run(script)) == len(runs[1].steps)
    complain(tab, page)


def use(tab: chromium.Tab, page: Path, picture: Path) -> None:
    """Hovers, zooms by dragging, by buttons and by keys, and shows waits only."""
    tab.look(**LOOKS["light"])
    tab.open(page)
    tab.run("document.querySelector('.plots').scrollIntoView()")
    box = tab.run("(({x, y, width, height}) => [x, y, width, height])"
                  "(document.querySelector('.plots canvas').getBoundingClientRect())")
    left, top = box[0] + box[2] / 3, box[1] + box[3] / 2
    tab.mouse("Moved", left, top)
    tab.settle()
    tip = tab.run("document.querySelector('.tip').innerText")
    for word in ("compute", "epoch", "at "):
        assert word in tip, f"the tooltip lacks {word!r}: {tip!r}"
    tab.picture(picture.with_name(f"{picture.name}-hover.png"), whole=False)

    before = shown(tab)
    tab.mouse("Pressed", left, top, down=True)
    tab.mouse("Moved", left + 150, top, down=True)
    tab.mouse("Released", left + 150, top)
    tab.settle()
    dragged = shown(tab)
    assert 1 < dragged < before / 3, f"{dragged} of {before} steps after dragging over a part"
    tab.picture(picture.with_name(f"{picture.name}-zoom.png"), whole=False)
    tab.run("document.querySelector('.plots').focus()")
    tab.key("+")
    tab.settle()
    assert shown(tab) < dragged or dragged <= LEAST_SHOWN
    tab.key("ArrowRight")
    assert not tab.run("document.querySelector('.tip').hidden")
    tab.key("0")
    tab.settle()
    assert shown(tab) == before
    tab.run("document.querySelector('[aria-label=\"zoom in\"]').click()")
    tab.run("document.querySelector('.controls input').click()")
    tab.settle()
    assert shown(tab) < before
    tab.picture(picture.with_name(f"{picture.name}-waits.png"), whole=False)


def columns(tab: chromium.Tab) -> int:
    return int(tab.run("document.querySelector('.plots').dataset.columns"))


def shown(tab: chromium.Tab) -> int:
    """How many steps the charts say that they show."""
    text = tab.run("document.querySelector('.scale').textContent")
    return int(text.split(" steps")[0].replace(",", ""))


def complain(tab: chromium.Tab, page: Path) -> None:
    assert not tab.errors, f"{page}: {tab.errors}"
    others = set(tab.requests) - {page.resolve().as_uri(), page.resolve().as_uri() + "#run1"}
    assert not others, f"{page} asks for {others}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", metavar="LOG", nargs="*", type=Path)
    parser.add_argument("--pictures", metavar="FOLDER", type=Path, help="keeps pages and pictures")
    arguments = parser.parse_args()
    program = chromium.find()
    if program is None:
        print("there is no Chromium: install it (Debian: apt-get install chromium), or name it in "
              "the environment's CHROMIUM", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        pictures = arguments.pictures or Path(scratch)
        pictures.mkdir(parents=True, exist_ok=True)
        logs = arguments.logs or make_logs(Path(scratch))
        with chromium.tab(program) as tab:
            for log in logs:
                check(tab, log, pictures)
                print(f"{log.name}: the page is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
