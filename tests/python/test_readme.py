"""Compares README.md and the documentation with the code: tables list exactly the native datasets
and transforms, each reason of explain() has a row, Python blocks run, commands and options exist."""

import argparse
import ast
import importlib
import os
import re
import runpy
import shutil
from pathlib import Path

import feedmill
import feedmill.data
import pytest
import torch.utils.data
import torchvision.datasets
from feedmill._dispatch.options import OPTIONS
from feedmill.cli import cli
from feedmill.cli.made_images import make_images
from feedmill.planner import array_datasets, known, timm_objects
from feedmill.profiling.counting.records import CAUSES, SAMPLE_DTYPE, STEP_DTYPE

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "pytorch_ext" / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
PACKAGE = ROOT / "pytorch_ext" / "feedmill"


def text_of(page):
    return (DOCS / page).read_text()


# ---- the tables ----------------------------------------------------------------------------------


def names_in(row):
    """The class names in a row's column of what is native."""
    lines = text_of("native.md").splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {row} |")]
    native = line.split("|")[2]
    return {name for name in re.findall(r"`([A-Za-z0-9]+)`", native) if name[0].isupper()}


def test_the_table_lists_the_native_transforms():
    names = set().union(*known._KNOWN.values(), known._CONTAINERS.values())
    assert names_in("transform") == names


def test_the_readmes_number_of_transforms():
    n_of_timm = len(set().union(*timm_objects.NAMES.values()))
    others = (names for at, names in known._KNOWN.items() if at not in timm_objects.NAMES)
    n = len(set().union(*others))
    text = f"| transform | {n} of torchvision's, v1 or v2, and {n_of_timm} of timm's,"
    assert text in README.read_text()


def test_the_table_lists_the_native_datasets_in_memory():
    names = {name for _, group, _ in array_datasets._IMAGES for name in group}
    assert names_in("in memory") == names | {"TensorDataset", "NpyFile", "Subset"}


def test_the_named_datasets_exist():
    names = names_in("tar files") | names_in("image files") | names_in("in memory")
    of_timm = {"ImageDataset", "ReaderImageFolder", "ReaderImageInTar", "ReaderImageTar"}
    for name in names - of_timm:  # timm is not installed
        homes = (torch.utils.data, torchvision.datasets, feedmill, feedmill.data)
        assert any(hasattr(home, name) for home in homes), name


def first_column(page):
    """The code in the first column of all tables of a page, without the header rows."""
    rows = [line for line in text_of(page).splitlines() if line.startswith("|")]
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def test_the_table_lists_all_options():
    assert set(OPTIONS) <= first_column("options.md")


def test_causes_and_fields_of_steps_are_in_the_glossary():
    assert {*CAUSES, *(STEP_DTYPE.names or ())} <= first_column("stalls.md")


def test_fields_of_samples_are_in_the_log_schema():
    assert set(SAMPLE_DTYPE.names or ()) <= first_column("log.md")


def test_verdicts_are_those_of_the_report():
    texts = "".join(file.read_text() for file in (PACKAGE / "profiling" / "report").glob("*.py"))
    table = text_of("stalls.md").partition("The sentence's first word")[2].partition("\n## ")[0]
    words = [code for row in table.splitlines() for code in re.findall(r"`([^`]+)`", row[:60])]
    assert len(words) > 10
    for word in words:
        assert word in texts or word.removesuffix("-bound") in texts, word


# ---- the reasons of explain() --------------------------------------------------------------------

# Functions that return reasons without calling add_reason() or UnsupportedError().
RETURNING = {
    "planner/array_samples.py": ["why_not"],
    "planner/arrow_datasets.py": [
        "reasons_against_rows", "reasons_against_formats", "why_not", "_reasons_against_collate",
    ],
    "planner/comparing.py": ["why_not"],
    "planner/equality.py": ["why_not_format"],
    "planner/pixel_values.py": ["finish", "_make_table"],
    "planner/raw_files.py": ["why_not"],
    "planner/recognise.py": ["_collate_reasons", "_worker_reasons", "_mode_reasons"],
    "planner/samples.py": ["why_not"],
    "planner/sample_streams.py": ["why_not", "_why_not_workers"],
    "planner/streams.py": ["_why_slow"],
    "planner/tensor_colors.py": ["why_not_sizes"],
    "planner/file_loaders.py": ["reasons_against"],
    "planner/opencv_files.py": ["_why_limited"],
    "planner/transforms.py": ["read_transform", "_read_views"],
    "planner/untouched.py": ["hooks_of", "unreadable"],
    "planner/files.py": [
        "reasons_against_opening", "reasons_against_loader", "reasons_against_backend",
        "reasons_against_samples", "reasons_against_names", "reasons_against_modes",
        "_reasons_against_turned",
    ],
    "planner/equal_augmentations.py": ["_compared"],
    "engine/devices.py": ["stage_refusal"],
    "_internals.py": ["why_not_this_torch", "why_collate_was_changed"],
    "_dispatch/paths.py": ["look"],
    "_dispatch/seed_warnings.py": ["mostly_by_pillow"],
}


def template(node):
    """A string literal of the code, with … for each value of an f-string; None for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "…" for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def texts_below(node):
    """All string literals below a node, but not the parts of f-strings."""
    text = template(node)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from texts_below(child)


def reasons():
    for file in [*(PACKAGE / "planner").glob("*.py"), *(PACKAGE / name for name in RETURNING)]:
        name = str(file.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in ("add_reason", "UnsupportedError"):
                    yield name, template(node.args[0])
            if isinstance(node, ast.FunctionDef) and node.name in RETURNING.get(name, ()):
                docstring = ast.get_docstring(node, clean=False)
                yield from ((name, one) for one in texts_below(node) if one != docstring)


def matches(row, reason):
    """Whether a reason's text contains a row's text, with any values in place of the …."""
    pattern = ".*".join(re.escape(part) for part in row.split("…"))
    return re.search(pattern, reason) is not None


def test_each_reason_has_a_row():
    rows = first_column("troubleshooting.md")
    found = {(name, one) for name, one in reasons() if one is not None and " " in one.strip()}
    # Parts of reasons, and strings that are not reasons.
    parts = {
        " with torchvision …", "decodes … images", ", conjugated", "a collate_fn", "the transform",
        "…: …", "…: … (tested with …)", "device=…: …", "… is …",
    }
    missing = [
        f"{name}: {one}" for name, one in sorted(found)
        if one not in parts and not any(matches(row, one) for row in rows)
    ]
    assert not missing, "troubleshooting.md has no row for:\n" + "\n".join(missing)


def test_each_row_is_a_current_reason_or_error():
    """Finds rows whose text is no longer in the code."""
    texts = []
    for file in PACKAGE.rglob("*.py"):
        texts += [one for one in texts_below(ast.parse(file.read_text())) if one]
    texts += [source.read_text() for source in (ROOT / "loader" / "pipeline").rglob("*.c")]
    page = text_of("troubleshooting.md").partition("## Notes in")[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for row in rows:
        for code in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            if code == "explain()":
                continue
            words = [part.strip() for part in code.split("…") if len(part.strip()) > 3]
            known_text = any(all(word in text for word in words) for text in texts)
            assert known_text or "memory_budget" in code, f"no reason is {code!r} any more"


# ---- Python blocks -------------------------------------------------------------------------------

NOT_RUN = re.compile(r"<!-- not run: .{10,}? -->\n(?=```python\n)")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program_of(page):
    """A page's Python blocks as one program, whose line numbers are those of the page."""
    text = page.read_text()
    skipped = {match.end() for match in NOT_RUN.finditer(text)}
    lines = []
    for block in BLOCK.finditer(text):
        if block.start() not in skipped:
            lines += [""] * (text[: block.start(1)].count("\n") - len(lines))
            lines += block[1].splitlines()
    return "\n".join(lines) + "\n"


PROGRAMS = {str(page.relative_to(ROOT)): program_of(page) for page in PAGES if page.exists()}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the files that the blocks use: photos/train, packs/train, tar files."""
    root = tmp_path_factory.mktemp("docs")
    make_images(root / "photos" / "train", 2, 12)
    before = os.getcwd()
    os.chdir(root)
    try:
        assert cli.main(["pack", "photos/train", "packs/train"]) == 0
    finally:
        os.chdir(before)
    for i in range(147):
        shutil.copy(root / "packs/train/shard-000000.tar", root / f"train-{i:06}.tar")
    return root


def names_given():
    """The names that a page's blocks use without defining them: a dataset and its transform."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    transform = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()
    ])
    dataset = ImageFolder("photos/train", transform)
    return {"dataset": dataset, "transform": transform, "transforms": transforms}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [name for name, text in PROGRAMS.items() if text.strip()])
def test_python_blocks_run(page, world, tmp_path, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / (Path(page).stem + ".py")
    file.write_text(PROGRAMS[page])
    runpy.run_path(str(file), init_globals=names_given())


# ---- commands, options, links --------------------------------------------------------------------


def parser_of(command):
    commands = argparse.ArgumentParser().add_subparsers()
    module = importlib.import_module(f"feedmill.cli.{cli._FILES.get(command, command)}")
    getattr(module, f"add_{command}")(commands)
    return commands.choices[command]


def shell_lines():
    for page in PAGES:
        if page.exists():
            for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.M | re.S):
                for line in block.splitlines():
                    yield page.name, line.partition("#")[0].strip()


def test_commands_and_their_options_exist():
    for page, line in shell_lines():
        words = line.split()
        if words[:1] != ["feedmill"]:
            continue
        assert words[1] in cli._COMMANDS, f"{page}: {line}"
        known_options = {o for action in parser_of(words[1])._actions for o in action.option_strings}
        # Options after the script's name belong to the script.
        own = words[2:]
        if words[1] == "run":
            script = [i for i, word in enumerate(own) if word.endswith(".py") or word == "torchrun"]
            own = own[: script[0]]
        for option in (word for word in own if word.startswith("-")):
            assert option in known_options, f"{page}: {line}: no option {option}"


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, line in shell_lines():
        for target in re.findall(r"\bmake ([a-z0-9-]+)", line):
            assert target in targets, f"{page}: {line}"
    for page in PAGES:
        if page.exists():
            for target in re.findall(r"`make ([a-z0-9-]+)", page.read_text()):
                assert target in targets, f"{page.name}: make {target}"


def test_each_command_has_a_section():
    for command in cli._COMMANDS:
        assert f"## `feedmill {command}`" in text_of("cli.md")


def anchors_of(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_have_existing_targets():
    """Links must also work where the files are read on a code host, without the built site."""
    for page in [one for one in PAGES if one.exists()]:
        for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text()):
            if target and "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", page.read_text()):
            assert anchor in anchors_of(page.parent / target if target else page), anchor


def test_files_that_the_map_of_the_code_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`((?:loader|pytorch_ext|include|tests|benchmarks|\.ci)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name
