"""Settings of requests to object stores and web servers, from the environment."""

from __future__ import annotations

import os
from typing import NamedTuple

from feedmill.remote.profiles import Profile, read_profile

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


class Settings(NamedTuple):
    """The arguments of ``_native.Remote``; "" and 0: its defaults, but for hedge_percent."""

    endpoint_url: str
    gs_endpoint_url: str
    region: str
    ca_bundle: str
    max_requests: int
    max_attempts: int
    connect_timeout_ms: int
    stall_timeout_ms: int
    give_up_ms: int
    hedge_percent: int


def read_settings() -> Settings:
    """The settings as the environment and the profile are now.

    Raises:
        ValueError: a variable has an invalid value.
    """
    try:
        profile = read_profile()
    except ValueError:  # said when keys for s3:// are looked for: other names need no profile
        profile = Profile()
    return Settings(
        endpoint_url=_endpoint(profile),
        gs_endpoint_url=os.environ.get("STORAGE_EMULATOR_HOST", ""),
        region=_first("AWS_REGION", "AWS_DEFAULT_REGION") or profile.region,
        ca_bundle=_first("AWS_CA_BUNDLE", "SSL_CERT_FILE") or profile.ca_bundle,
        max_requests=_count("FEEDMILL_REMOTE_REQUESTS", 10_000),
        max_attempts=_count("FEEDMILL_REMOTE_ATTEMPTS", 1000),
        connect_timeout_ms=_milliseconds("FEEDMILL_REMOTE_CONNECT_TIMEOUT"),
        stall_timeout_ms=_milliseconds("FEEDMILL_REMOTE_STALL_TIMEOUT"),
        give_up_ms=_milliseconds("FEEDMILL_REMOTE_GIVE_UP"),
        hedge_percent=_count("FEEDMILL_REMOTE_HEDGE", 100, least=0, default=2),
    )


def fsspec_threads() -> int:
    """How many threads of a loader read by fsspec. Raises ValueError: an invalid setting."""
    return _count("FEEDMILL_FSSPEC_THREADS", 1000) or 16


def is_on(*names: str) -> bool:
    """Whether one of these variables is set to yes.

    Raises:
        ValueError: one is neither yes nor no.
    """
    found = False
    for name in names:
        text = os.environ.get(name, "").strip().lower()
        if text not in _YES and text not in _NO:
            raise ValueError(f"{name} is {text!r}; it must be YES or NO")
        found = found or text in _YES
    return found


def _endpoint(profile: Profile) -> str:
    if is_on("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        return ""
    return _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") or profile.endpoint_url


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name, ""))), "")


def _count(name: str, most: int, *, least: int = 1, default: int = 0) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text!r}; it must be an integer from {least} to {most:,}")
    return int(text)


def _milliseconds(name: str) -> int:
    """A time in seconds from the environment, in milliseconds."""
    text = os.environ.get(name, "")
    if not text:
        return 0
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 86400:
        raise ValueError(f"{name} is {text!r}; it must be a number of seconds from 0.001 to 86400")
    return round(seconds * 1000)
