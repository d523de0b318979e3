"""Lists buckets with ListObjectsV2, many prefixes at a time.

The requests, their retries and signatures are those that read objects (``remote.process``).
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from feedmill.indexing.building import Entry
from feedmill.indexing.threads import parallel
from feedmill.remote.process import fetch, origins

# Listings at a time.
_THREADS = 32
# Pages that a range of keys lists before what is left of all ranges is split anew.
_ROUND_PAGES = 4
# A folder of more pages is listed in ranges of keys once half of the threads have no other folder.
_LARGE_PAGES = 8


class Place(NamedTuple):
    """Objects of a bucket.

    Attributes:
        bucket: such as "s3://bucket".
        prefix: begin of the objects' keys, "" or with a "/" at its end.
    """

    bucket: str
    prefix: str

    @property
    def root(self) -> str:
        return f"{self.bucket}/{self.prefix}"


class _Page(NamedTuple):
    """A response to ListObjectsV2, with keys behind the prefix.

    Attributes:
        entries: the objects.
        folders: begins of further keys up to the delimiter, which they end with.
        token: of the next page; "": this is the last one.
    """

    entries: list[Entry]
    folders: list[str]
    token: str


def place_of(source: str) -> Place:
    """The place that a name such as s3://bucket/prefix stands for.

    Raises:
        ValueError: it has no bucket.
    """
    scheme, _, rest = source.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise ValueError(f"{source!r} has no bucket; a name has the form {scheme}://BUCKET/PREFIX")
    prefix = prefix.rstrip("/")
    return Place(f"{scheme.lower()}://{bucket}", prefix + "/" if prefix else "")


def list_all(place: Place, update: Callable[[int], Any]) -> Iterator[tuple[str, list[Entry]]]:
    """Lists all objects of a place: the folders at its top first, then each of them, in threads.

    Args:
        update: called with the number of objects that were listed since the last call.

    Yields:
        For each folder, in any order, its name without a "/", and its objects, whose keys begin
        behind the place's prefix. Then "" and the objects that are in no folder.

    Raises:
        OSError: a listing failed; the text says what to do. FileNotFoundError if there is no such
            bucket, PermissionError if it may not be listed.
    """
    top, folders = _list_top(place, update)
    n_left = len(folders)

    def work(folder: str, stopped: threading.Event) -> tuple[str, list[Entry], bool]:
        found: list[Entry] = []
        n_pages, is_ordered = 0, True
        for page in _pages(place, folder, "", stopped):
            is_ordered = is_ordered and _are_ordered([*found[-1:], *page.entries])
            found += page.entries
            counts.put(len(page.entries))
            n_pages += 1
            is_large = n_pages >= _LARGE_PAGES and is_ordered and n_left <= _THREADS // 2
            if is_large and page.token and found:
                return folder, found, False
        return folder, found, True

    counts: queue.SimpleQueue[int] = queue.SimpleQueue()
    large: dict[str, list[Entry]] = {}
    for folder, found, is_complete in parallel(
        work, folders, lambda: update(_sum_of(counts)), _THREADS
    ):
        n_left -= 1
        if is_complete:
            yield folder[:-1], found
        else:
            large[folder] = found
    if large:
        yield from _list_large(place, large, update)
    yield "", top


def _list_large(
    place: Place, begun: dict[str, list[Entry]], update: Callable[[int], Any]
) -> Iterator[tuple[str, list[Entry]]]:
    """Lists the rest of folders, of which the first objects are given. Yields as list_all()."""
    ranges = [
        _Range(entries[-1].key[len(folder) :], "", folder) for folder, entries in begun.items()
    ]
    first = [one for entries in begun.values() for one in entries]
    found = _list_ranges(place, ranges, first, "", update)
    if found is not None:
        by_folder: dict[str, list[Entry]] = {folder: [] for folder in begun}
        for one in found[0]:
            by_folder[one.key[: one.key.index("/") + 1]].append(one)
        yield from ((folder[:-1], entries) for folder, entries in by_folder.items())
        return

    def work(folder: str, stopped: threading.Event) -> tuple[str, list[Entry]]:
        return folder[:-1], [
            one for page in _pages(place, folder, "", stopped) for one in page.entries
        ]

    for name, entries in parallel(work, list(begun), lambda: None, _THREADS):
        update(len(entries) - len(begun[name + "/"]))
        yield name, entries


def _are_ordered(entries: Sequence[Entry]) -> bool:
    return all(one.key < two.key for one, two in pairwise(entries))


def _list_top(place: Place, update: Callable[[int], Any]) -> tuple[list[Entry], list[str]]:
    """The objects and folders directly at a place, in order."""
    top: list[Entry] = []
    folders: list[str] = []
    for page in _pages(place, "", "/", threading.Event()):
        top += page.entries
        folders += page.folders
        update(len(page.entries))
        if page.token and page.entries and len(top) == len(page.entries) and not folders:
            found = _list_ranges(place, [_Range(_last_key(page), "")], page.entries, "/", update)
            if found is not None:
                return found
    return top, folders


def _sum_of(counts: queue.SimpleQueue[int]) -> int:
    total = 0
    while not counts.empty():
        total += counts.get()
    return total


# ---- ranges of keys ------------------------------------------------------------------------------


class _Range(NamedTuple):
    """Keys behind a place's prefix and ``within``: greater than ``after``, and at most ``end``; "":
    no end."""

    after: str
    end: str
    within: str = ""


def _list_ranges(
    place: Place,
    ranges: list[_Range],
    first: Sequence[Entry],
    delimiter: str,
    update: Callable[[int], Any],
) -> tuple[list[Entry], list[str]] | None:
    """Lists ranges of keys at a place: the objects, and the folders up to the delimiter.

    Args:
        first: what was listed of them before, which is part of the result.

    Where the keys are is not known before: every range lists a few pages, and what is left of all
    ranges is split anew at guessed keys. A bad guess costs an empty page, and never an object.

    Returns:
        None: the server does not list in order, as S3's directory buckets.
    """
    alphabet = sorted({one for entry in first for one in entry.key.partition("/")[2] or entry.key})
    entries: list[Entry] = list(first)
    folders: set[str] = set()

    def work(
        wanted: _Range, stopped: threading.Event
    ) -> tuple[_Range, list[_Page], _Range | None]:
        pages: list[_Page] = []
        after = wanted.within + wanted.after if wanted.after else ""
        for page in _pages(place, wanted.within, delimiter, stopped, after):
            pages.append(page)
            last = _last_key(page)[len(wanted.within) :]
            if not page.token or (wanted.end and last >= wanted.end):
                return wanted, pages, None
            if len(pages) == _ROUND_PAGES:
                break
        return wanted, pages, wanted._replace(after=last) if pages else None

    while ranges:
        left = []
        for wanted, pages, rest in parallel(
            work, _split(ranges, alphabet), lambda: None, _THREADS
        ):
            found = [one for page in pages for one in page.entries]
            after, end = wanted.within + wanted.after, wanted.within + wanted.end
            if any(one.key <= after for one in found) or (rest and rest.after <= wanted.after):
                update(len(first) - len(entries))
                return None
            found = [one for one in found if not wanted.end or one.key <= end]
            entries += found
            folders.update(one for page in pages for one in page.folders)
            update(len(found))
            if rest is not None:
                left.append(rest)
        ranges = left
    return sorted(entries), sorted(folders)


def _last_key(page: _Page) -> str:
    """The greatest key that a page stands for; of a folder, one behind all its objects."""
    keys = [one.key for one in page.entries[-1:]]
    return max([*keys, *(one + "\U0010ffff" for one in page.folders[-1:])], default="")


def _split(ranges: list[_Range], alphabet: list[str]) -> list[_Range]:
    """Splits ranges until there is one for each thread, or none can be split."""
    while ranges and len(ranges) < _THREADS:
        parts: list[_Range] = []
        for one in ranges:
            middle = _middle(one, alphabet)
            splits = one.after < middle and (not one.end or middle < one.end)
            halves = [one._replace(end=middle), one._replace(after=middle)]
            parts += halves if splits else [one]
        if len(parts) == len(ranges):
            break
        ranges = parts
    return ranges


def _middle(wanted: _Range, alphabet: list[str]) -> str:
    """A key in the middle of a range if keys are numbers, whose digits are the alphabet."""
    base = len(alphabet) + 1
    n_digits = max(len(wanted.after), len(wanted.end)) + 2

    def number_of(key: str) -> int:
        number = 0
        for i in range(n_digits):
            number = number * base + (bisect_right(alphabet, key[i]) if i < len(key) else 0)
        return number

    end = number_of(wanted.end) if wanted.end else base**n_digits - 1
    number, digits = (number_of(wanted.after) + end) // 2, []
    for _ in range(n_digits):
        number, digit = divmod(number, base)
        digits.append(digit)
    text = ""
    for digit in reversed(digits):
        if digit == 0:  # the end of a key
            break
        text += alphabet[digit - 1]
    return text


# ---- one listing ---------------------------------------------------------------------------------


def _pages(
    place: Place, within: str, delimiter: str, stopped: threading.Event, after: str = ""
) -> Iterator[_Page]:
    """The pages of one listing, below place.prefix + within, of keys greater than ``after``."""
    token = ""
    while not stopped.is_set():
        page = _page_of(place, within, delimiter, token, after)
        yield page
        if not page.token:
            return
        if page.token == token:
            raise OSError(errno.EPROTO, "the server repeats a page of its listing", place.root)
        token = page.token


def _page_of(place: Place, within: str, delimiter: str, token: str, after: str) -> _Page:
    parameters = {"list-type": "2", "encoding-type": "url", "prefix": place.prefix + within}
    if delimiter:
        parameters["delimiter"] = delimiter
    if token:
        parameters["continuation-token"] = token
    elif after:
        parameters["start-after"] = place.prefix + after
    query = "&".join(f"{name}={quote(value, safe='-_.~', errors='surrogateescape')}"
                     for name, value in parameters.items())
    try:
        response = fetch(f"{place.bucket}?{query}")
    except OSError as error:
        raise _explained(error, place) from None
    return _parsed(response, place)


def _parsed(response: bytes, place: Place) -> _Page:
    """Raises OSError if the response is not that of an S3 server."""
    try:
        tree = ElementTree.fromstring(response)
        if tree.tag.rpartition("}")[2] != "ListBucketResult":
            raise ValueError
        return _page_in(tree, place)
    except (ElementTree.ParseError, ValueError):
        raise OSError(
            errno.EPROTO,
            f"the server does not answer as S3 does: {_endpoint_advice(place)}", place.root,
        ) from None


def _page_in(tree: ElementTree.Element, place: Place) -> _Page:
    """Raises ValueError if a size is not a number."""
    space, end, _ = tree.tag.rpartition("}")
    space += end
    is_url = tree.findtext(f"{space}EncodingType", "") == "url"

    def text(node: ElementTree.Element, name: str) -> str:
        return node.findtext(space + name, "")

    def key_of(node: ElementTree.Element, name: str) -> str:
        key = text(node, name)
        return unquote_plus(key, errors="surrogateescape") if is_url else key

    n = len(place.prefix)
    entries = [
        Entry(key_of(one, "Key")[n:], int(text(one, "Size") or -1), _plain(text(one, "ETag")))
        for one in tree.iter(f"{space}Contents")
    ]
    folders = [key_of(one, "Prefix")[n:] for one in tree.iter(f"{space}CommonPrefixes")]
    token = text(tree, "NextContinuationToken") if text(tree, "IsTruncated") == "true" else ""
    return _Page(entries, folders, token)


def _plain(etag: str) -> str:
    """A strong ETag without its quotes; "": it is weak, or there is none."""
    return "" if etag.startswith("W/") else etag.strip('"')


# ---- what went wrong -----------------------------------------------------------------------------


def _explained(error: OSError, place: Place) -> OSError:
    """The error of a listing, with what to do about it."""
    why, is_s3 = error.strerror or str(error), place.bucket.startswith("s3://")
    if isinstance(error, FileNotFoundError):
        advice = f"there is no bucket of this name at the server; {_endpoint_advice(place)}"
    elif isinstance(error, PermissionError):
        scheme = place.bucket.partition(":")[0]
        keys = origins().get(scheme, "none")
        right = "s3:ListBucket" if is_s3 else "storage.objects.list"
        advice = (
            f"it may not be listed with the credentials in use ({keys}): they need the permission "
            f"{right}. A table of keys and labels needs no listing: --csv FILE --no-list"
        )
    elif is_s3 and any(code in why for code in ("HTTP 301", "HTTP 307", "HTTP 400")):
        advice = (
            "the bucket may be in another region: set AWS_REGION, now "
            f"{os.environ.get('AWS_REGION') or os.environ.get('AWS_DEFAULT_REGION') or 'not set'}"
        )
    else:
        advice = _endpoint_advice(place)
    number = error.errno or errno.EIO
    return OSError(number, f"{why}: {advice}", place.root)


def _endpoint_advice(place: Place) -> str:
    """What to look at if a server is the wrong one."""
    name = "AWS_ENDPOINT_URL" if place.bucket.startswith("s3://") else "STORAGE_EMULATOR_HOST"
    names = (name, "AWS_ENDPOINT_URL_S3") if name == "AWS_ENDPOINT_URL" else (name,)
    is_set = any(os.environ.get(one) for one in names)
    state = "is set" if is_set else "is not set, so that it was asked at the store's own address"
    return f"check the bucket's name, and the server's address: {name} {state}"
