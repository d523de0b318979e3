"""Which paths are names of remote objects, and how messages show them."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

from feedmill._ops import native

SCHEMES = ("s3://", "gs://", "http://", "https://")
_PROBED_PATHS = 10_000
# By status of HTTP.
_ERRNOS = {"404": errno.ENOENT, "410": errno.ENOENT, "401": errno.EACCES, "403": errno.EACCES}
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
# As fm_custom_is_name().
_FSSPEC_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+(://|::.*://)", re.DOTALL)
# In these, what stands before an "@" is a container or a login, and no token.
_WITH_USERS = (
    "abfs", "abfss", "adl", "az", "wasb", "wasbs", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs",
)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://[^\s'\"<>]+")


def is_name(path: Any) -> bool:
    """Whether a path names a remote object, which libcurl can read."""
    return isinstance(path, str) and path[:8].lower().startswith(SCHEMES)


def has_names(paths: list[Any]) -> bool:
    """Whether a list has such names. Of a long list some paths are looked at, evenly spaced."""
    return any(map(is_name, _probed(paths)))


def is_fsspec_name(path: Any) -> bool:
    """Whether a path names an object that fsspec must read: it has another scheme, as hf://a/b or
    simplecache::s3://b/k, and is not a file's path."""
    if not isinstance(path, str) or "://" not in path or is_name(path):
        return False
    # hf://x is also the file x in the folder hf:, if there is one.
    return _FSSPEC_NAME.match(path) is not None and not os.path.exists(path)


def in_chain(name: str) -> tuple[str, str, str]:
    """Splits the name of a folder or an object that fsspec reads at its path: (begin, link with the
    path, end). In simplecache::az://a/b that is az://a/b, and in zip://b::file:///x.zip it is
    zip://b."""
    links = name.split("::")
    at = next((i for i, link in enumerate(links) if "://" in link), 0)
    begin, end = "::".join([*links[:at], ""]), "::".join(["", *links[at + 1 :]])
    return begin, links[at], end


def has_fsspec_names(paths: list[Any]) -> bool:
    """As has_names(), for names that fsspec must read."""
    return any(map(is_fsspec_name, _probed(paths)))


def _probed(paths: list[Any]) -> list[Any]:
    return paths[:: max(1, len(paths) // _PROBED_PATHS)]


def why_no_name(path: Any) -> str:
    """Why a path that looks like a URL can't be read without fsspec; "" if it can, or is a file's
    path."""
    found = _SCHEME.match(path) if isinstance(path, str) else None
    if found is None:
        return ""
    if not is_name(path):
        # hf://x is also the file x in the folder hf:, if there is one.
        return "" if os.path.exists(path) else (
            f"{found[0]} is not supported here; feedmill reads {', '.join(SCHEMES)} and files"
        )
    if not native.libcurl_version():
        return (
            "feedmill was built without libcurl, so it can't read over the network; install "
            "libcurl and OpenSSL with their headers (Debian, Ubuntu: apt-get install "
            "libcurl4-openssl-dev libssl-dev), and feedmill again from source"
        )
    return ""


def shown(path: Any) -> Any:
    """A path as messages show it: without the user, query and fragment of a URL, which may be
    secrets. Of s3:// and gs:// names all of these belong to the key."""
    if not isinstance(path, str) or path[:5].lower().startswith(("s3://", "gs://")):
        return path
    if not is_name(path) and "::" in path and _FSSPEC_NAME.match(path):
        return "::".join(_shown_link(link) for link in path.split("::"))
    return _shown_link(path)


def without_secrets(text: str, name: str) -> str:
    """A text about a name, in which URLs are as shown() returns them, without the name's user and
    query."""
    for link in name.split("::"):
        _, _, rest = link.partition("://")
        place, mark, query = rest.partition("?")
        user = place.partition("/")[0].rpartition("@")[0]
        for secret in (f"{mark}{query}" if query else "", query, user, user.partition(":")[2]):
            if secret:
                text = text.replace(secret, "...")
    return _URL.sub(lambda found: _shown_link(found[0]), text)


def may_have_secret(link: str) -> bool:
    """Whether a name that fsspec reads has what may be a secret: a password or token before an "@",
    a query or a fragment."""
    scheme, _, place = link.partition("://")
    user = place.partition("/")[0].rpartition("@")[0]
    is_secret = ":" in user or (user != "" and scheme.lower() not in _WITH_USERS)
    return is_secret or "?" in place or "#" in place


def _shown_link(path: str) -> str:
    if _SCHEME.match(path) is None:
        return path
    scheme, _, rest = re.split(r"[?#]", path, maxsplit=1)[0].partition("://")
    host, slash, key = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{key}"


def read_error(name: str, why: str) -> OSError:
    """The exception for a remote object that can't be read: FileNotFoundError if the server has no
    such object, PermissionError if it does not allow to read it, else OSError.

    Args:
        name: of the object.
        why: what the native code says about it.
    """
    # Without the sample's number and name, which the caller adds in Python's form.
    why = why.partition(f"{shown(name)}): ")[2] or why
    found = re.search(r"\bHTTP (\d{3})\b", why)
    number = _ERRNOS.get(found[1] if found else "", errno.EIO)
    return OSError(number, why, shown(name))


def place_of(path: Any) -> str:
    """Where a path's remote object is, such as "s3://bucket"; "" for a file's path."""
    if not isinstance(path, str) or _SCHEME.match(path) is None:
        return ""
    return "/".join(str(shown(path)).split("/", 3)[:3])
