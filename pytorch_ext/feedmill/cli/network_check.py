"""What ``feedmill doctor`` says about object stores: credentials, and a request for a name."""

from __future__ import annotations

import time
from typing import Any

from feedmill.packing.index import INDEX_NAME
from feedmill.packing.objects import name_in
from feedmill.remote.credentials import find
from feedmill.remote.names import is_fsspec_name, is_name, shown
from feedmill.remote.settings import fsspec_threads, read_settings
from feedmill.remote.sources import read_first, why_unreadable

_MAX_REQUESTS = 256  # FEEDMILL_REMOTE_REQUESTS's default


def check_name(name: str) -> dict[str, Any]:
    """Facts about a remote object, as in the JSON of ``feedmill doctor``: the credentials that are
    used for it, without secrets, and what two requests for its first byte tell. Of the name of a
    folder, which ends in a slash, the index of the pack there is requested."""
    asked = name_in(name, INDEX_NAME) if str(shown(name)).endswith("/") else name
    facts: dict[str, Any] = {
        "name": shown(asked), "credentials": None, "endpoint": None, "error": why_unreadable(asked),
        "bytes": None, "etag": None, "first_request_s": None, "next_request_s": None,
        "max_requests": None,
    }
    if facts["error"]:
        return facts
    scheme = asked.partition("://")[0].lower()
    try:
        facts["credentials"] = (
            find(scheme).keys.origin if scheme in ("s3", "gs")
            else "none" if is_name(asked) else "those of fsspec's configuration")
        settings = read_settings()
        facts["max_requests"] = (
            settings.max_requests or _MAX_REQUESTS if is_name(asked) else fsspec_threads())
        endpoints = {"s3": settings.endpoint_url, "gs": settings.gs_endpoint_url}
        facts["endpoint"] = shown(endpoints.get(scheme, "")) or None
        began = time.monotonic()
        head = read_first(asked, 0, 1)
        facts["first_request_s"] = time.monotonic() - began
        facts["bytes"], facts["etag"] = head.object_bytes, head.etag or None
        began = time.monotonic()
        read_first(asked, 0, 1)
        facts["next_request_s"] = time.monotonic() - began
    except Exception as error:  # botocore and google-auth raise errors of their own
        facts["error"] = str(error)
    return facts


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, text) of each finding."""
    result = [("object", found["name"])]
    if found["credentials"] is not None:
        result.append(("keys", found["credentials"]))
    if found["endpoint"] is not None:
        result.append(("endpoint", found["endpoint"]))
    if found["error"]:
        return [*result, ("request", f"failed: {found['error']}")]
    size = "unknown size" if found["bytes"] is None else f"{found['bytes']:,} bytes"
    is_by_fsspec = is_fsspec_name(found["name"])
    etag = f"ETag {found['etag']}" if found["etag"] else "no strong ETag"
    if is_by_fsspec or not found["etag"]:
        etag += ": a change while it is read may be missed"
    next_s, n_most = found["next_request_s"], found["max_requests"]
    setting = "FEEDMILL_FSSPEC_THREADS" if is_by_fsspec else "FEEDMILL_REMOTE_REQUESTS"
    connecting_s = max(0.0, found["first_request_s"] - next_s)
    return [*result, ("request", f"read: {size}, {etag}; {1e3 * found['first_request_s']:.1f} ms, "
                                 f"and {1e3 * next_s:.1f} ms on the same connection"),
            ("", f"connecting took about {1e3 * connecting_s:.1f} ms; waiting for the first byte "
                 f"limits {n_most} requests in flight ({setting}) to "
                 f"{n_most / max(next_s, 1e-6):,.0f} objects a second"),
            ("", "feedmill bench with such names says what reads wait for")]
