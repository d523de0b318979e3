"""This process's ``_native.Remote``, which its loaders share, and what keeps its keys valid."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any, NamedTuple

from feedmill._ops import native
from feedmill.remote.credentials import Found, find
from feedmill.remote.names import is_name, read_error, shown, why_no_name
from feedmill.remote.settings import Settings, read_settings
from feedmill.system.locks import renew_after_fork

# How often keys that can change are looked up. AWS's and Google's libraries request new ones when
# the old ones are valid for 15 and 4 more minutes.
_RENEWAL_S = 60.0
# Of the variables that settings and credentials come from.
_PREFIXES = ("AWS_", "GS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "SSL_CERT_FILE",
             "FEEDMILL_REMOTE_", "HOME")


class Head(NamedTuple):
    """What fetch_first() returns.

    Attributes:
        data: the range.
        etag: the object's strong ETag, with its quotes; "": none.
        object_bytes: size of the object; None: not known.
    """

    data: bytes
    etag: str
    object_bytes: int | None


class _Opened(NamedTuple):
    """A Remote, and what it was opened with."""

    environment: int  # hash of the variables, of which some are secrets
    settings: Settings
    remote: Any
    keeper: _Keeper


class _Current:
    """The process's Remote. A child of a fork makes its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.opened: _Opened | None = None
        renew_after_fork(self, lock=threading.RLock, opened=lambda: None)


class _Keeper:
    """Finds the credentials of a Remote when a store is first used, and again before they expire.

    Attributes:
        remote: returns the ``_native.Remote``, or None if it is gone: the Remote refers to this
            object, so that only a weak reference back is kept.
    """

    def __init__(self) -> None:
        self.remote: Any = None
        self._lock = threading.RLock()
        self._found: dict[str, Found] = {}
        self._thread: threading.Thread | None = None

    def prepare(self, scheme: str) -> None:
        """Finds the credentials for "s3" or "gs". Raises as credentials.find()."""
        with self._lock:
            if scheme in self._found:
                return
            self._found[scheme] = find(scheme)
            self._set()
            if self._found[scheme].renew is not None and self._thread is None:
                self._thread = threading.Thread(
                    target=_renew_often, args=(weakref.ref(self),), name="fm-credentials",
                    daemon=True,
                )
                self._thread.start()

    def renew(self) -> None:
        """Looks the credentials up again. If that fails, the earlier ones stay."""
        with self._lock:
            for scheme, found in list(self._found.items()):
                if found.renew is None:
                    continue
                try:
                    keys = found.renew()
                except Exception:  # the next try, or the store's refusal, will tell
                    continue
                self._found[scheme] = Found(keys, found.renew)
            self._set()

    def origins(self) -> dict[str, str]:
        """Where the credentials of the stores that were used were found."""
        with self._lock:
            return {scheme: found.keys.origin for scheme, found in self._found.items()}

    def _set(self) -> None:
        remote = self.remote and self.remote()
        if remote is not None:
            values: dict[str, str] = {}
            for found in self._found.values():
                values.update(found.keys.values)
            remote.set_credentials(**values)


def _renew_often(of: weakref.ref[_Keeper]) -> None:
    pause = threading.Event()
    while not pause.wait(_RENEWAL_S):
        keeper = of()
        if keeper is None or sys.is_finalizing():
            return
        keeper.renew()
        del keeper


_current = _Current()


def shared() -> Any:
    """The ``_native.Remote`` of this process, for the settings as they are now; None: feedmill was
    built without libcurl. Opens no connection, and looks for no credentials.

    Raises:
        ValueError: a setting is invalid.
    """
    if not native.libcurl_version():
        return None
    environment, settings = _environment(), read_settings()
    with _current.lock:
        opened = _current.opened
        if opened is None or opened[:2] != (environment, settings):
            opened = _current.opened = _open(environment, settings)
        return opened.remote


def _of_fetch() -> Any:
    """As shared(), but AWS's files are read again only if the environment has changed."""
    with _current.lock:
        opened = _current.opened
        if opened is None or opened.environment != _environment():
            return shared()
        return opened.remote


def _environment() -> int:
    """Hash of the variables that settings and credentials may come from."""
    return hash(tuple((name, value) for name, value in os.environ.items()
                      if name.startswith(_PREFIXES)))


def _open(environment: int, settings: Settings) -> _Opened:
    keeper = _Keeper()
    given = {name: value for name, value in settings._asdict().items()
             if value or name == "hedge_percent"}
    remote = native.Remote(prepare=keeper.prepare, **given)
    keeper.remote = weakref.ref(remote)
    return _Opened(environment, settings, remote, keeper)


def origins() -> dict[str, str]:
    """Where the credentials were found, by scheme; empty before they were needed."""
    opened = _current.opened
    return {} if opened is None else opened.keeper.origins()


def fetch(name: str, offset: int = 0, n_bytes: int = 0, etag: str | None = None) -> bytes:
    """Reads a remote object, or a range of it. Blocks, without the GIL.

    Args:
        name: such as "s3://bucket/key".
        offset, n_bytes: of the range; 0 bytes: the whole object.
        etag: only the version with this ETag, in its quotes; None: any.

    Raises:
        FileNotFoundError, PermissionError, OSError: the object can't be read.
        ValueError: the name or a setting is invalid.
    """
    _check(name)
    data = _of_fetch().fetch(name, offset, n_bytes, etag)
    if type(data) is str:
        raise read_error(name, data)
    assert type(data) is bytes
    return data


def fetch_first(name: str, offset: int, n_bytes: int) -> Head:
    """As fetch(), for the first range of an object of which others will be read: takes the version
    that the server has now. Later ranges that fetch() finds in another version are errors."""
    _check(name)
    found = _of_fetch().fetch_first(name, offset, n_bytes)
    if type(found) is str:
        raise read_error(name, found)
    return Head(*found)


def _check(name: str) -> None:
    if why := why_no_name(name):
        raise ValueError(f"{shown(name)!r} can't be read: {why}")
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of a remote object")
