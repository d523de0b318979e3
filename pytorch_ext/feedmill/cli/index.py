"""``feedmill index SRC -o FILE`` lists the images of a bucket or a folder, for feedmill.Index."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from feedmill.cli.progress import progress
from feedmill.cli.survey import bytes_text

if TYPE_CHECKING:
    from feedmill.indexing.classes import Found, Listed


def add_index(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    index = commands.add_parser(
        "index",
        help="list the images of a bucket or a folder once, for feedmill.Index",
        description=(
            "Lists all images below SRC and writes their names, labels, sizes and ETags to an "
            "index, which feedmill.Index opens at once. Classes are the folders in SRC, as for "
            "torchvision's ImageFolder, or come from a table of keys and labels. The same command "
            "writes the index again; an earlier one stays until the new one is complete."
        ),
    )
    index.add_argument("src", metavar="SRC", help="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, a name "
                       "that fsspec reads, or a folder; with a table also http://... and "
                       "https://...")
    index.add_argument("-o", "--output", required=True, metavar="FILE", help="the index to write")
    table = index.add_mutually_exclusive_group()
    table.add_argument("--csv", metavar="FILE",
                       help="a table of keys, relative to SRC, and labels. Its first line names "
                            "the columns; labels are numbers, or names of classes")
    table.add_argument("--parquet", metavar="FILE",
                       help="the same as a Parquet file (needs pyarrow)")
    index.add_argument("--columns", type=_columns, default=("key", "label"), metavar="KEY,LABEL",
                       help="the table's columns (default: key,label)")
    index.add_argument("--no-list", action="store_true",
                       help="with a table: believe it, and list nothing. Then the index has no "
                            "ETags, and changed objects are not noticed")
    index.add_argument("--no-etags", action="store_true",
                       help="leave out the ETags, so that changed objects are read as they are")
    index.add_argument("--allow-empty", action="store_true",
                       help="keep class folders without an image as classes")
    index.set_defaults(run=_index)


def _columns(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a pair of columns such as key,label")
    return names[0], names[1]


def _index(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from feedmill.remote.names import shown

    has_table = arguments.csv is not None or arguments.parquet is not None
    if arguments.no_list and not has_table:
        parser.error("--no-list needs a table: --csv FILE or --parquet FILE")
    if has_table and arguments.allow_empty:
        parser.error("--allow-empty is for class folders, and not for a table")
    if _is_url(arguments.src) and not has_table:
        parser.error(
            f"{shown(arguments.src)}: web servers have no listing; give the keys and labels in a "
            "table: --csv FILE, with a first line key,label"
        )
    try:
        return _write(arguments)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(f"feedmill index: {_text_of(error)}", file=sys.stderr)
        return 1


def _text_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def _write(arguments: argparse.Namespace) -> int:
    from feedmill.indexing.building import write

    began = time.monotonic()
    # A listing may take minutes, so what would then fail fails now.
    os.stat(os.path.dirname(os.path.abspath(arguments.output)))
    with progress(None, " objects") as update:
        found = _find(arguments, update)
    contents = found.contents
    if arguments.no_etags:
        contents = contents._replace(entries=[one._replace(etag="") for one in contents.entries])
    n_bytes = write(contents, arguments.output)
    _print(arguments, found, n_bytes, time.monotonic() - began)
    return 0


def _find(arguments: argparse.Namespace, update: Any) -> Found:
    from feedmill.indexing.classes import by_folders, by_table
    from feedmill.indexing.tables import read_csv, read_parquet

    if arguments.csv is None and arguments.parquet is None:
        return by_folders(*_listed(arguments.src, update), arguments.allow_empty)
    path = arguments.csv or arguments.parquet
    read = read_csv if arguments.csv else read_parquet
    keys, labels = read(path, arguments.columns)
    root, listed = _listed(arguments.src, update)
    is_listed = not arguments.no_list and not _is_url(arguments.src)
    return by_table(root, listed if is_listed else None, keys, labels, path)


def _listed(source: str, update: Any) -> tuple[str, Listed]:
    """The begin of all names, and what lists them when it is iterated over."""
    from feedmill.indexing.by_fsspec import list_store, root_of
    from feedmill.indexing.folders import list_folder
    from feedmill.indexing.listing import list_all, place_of
    from feedmill.remote.names import is_fsspec_name, is_name, shown
    from feedmill.remote.sources import why_unreadable

    if why := why_unreadable(source):
        raise ValueError(f"{shown(source)!r} can't be read: {why}")
    if _is_url(source):
        if shown(source) != source:
            raise ValueError(
                f"{shown(source)}: a URL with a user, query or fragment can't be indexed, as an "
                "index would keep what may be a secret"
            )
        return source.rstrip("/") + "/", ()
    if is_name(source):
        place = place_of(source)
        return place.root, list_all(place, update)
    if is_fsspec_name(source):
        root = root_of(source)
        return root, list_store(root, update)
    folder = os.path.join(os.path.abspath(source), "")
    return folder, list_folder(folder, update)


def _print(arguments: argparse.Namespace, found: Found, n_bytes: int, seconds: float) -> None:
    contents = found.contents
    n_sized = sum(one.size for one in contents.entries if one.size > 0)
    sized = f", {bytes_text(n_sized)}" if n_sized else ""
    print(f"{arguments.output}: {len(contents.entries):,} images of {len(contents.classes):,} "
          f"classes in {contents.root}{sized}; the index has {bytes_text(n_bytes)}, written in "
          f"{seconds:,.1f} s")
    if found.n_others:
        print(f"left out: {found.n_others:,} objects in class folders without an image's extension")
    if found.n_outside:
        why = "that the table does not name" if arguments.csv or arguments.parquet else (
            "that are in no class folder")
        print(f"left out: {found.n_outside:,} images {why}")
