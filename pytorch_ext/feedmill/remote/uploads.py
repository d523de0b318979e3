"""Writes objects to a bucket, by boto3. This is the one file that imports it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from feedmill.remote import credentials
from feedmill.remote.settings import Settings, read_settings

_GS_ENDPOINT = "https://storage.googleapis.com"
# Of an object: larger ones are uploaded in parts of so many bytes. S3 allows 10,000 parts.
_PART_BYTES = 64 << 20
# As of reads.
_ATTEMPTS, _CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 10, 10, 20
_ERRNOS = {"403": errno.EACCES, "404": errno.ENOENT}


class Prefix:
    """The objects of a bucket whose keys begin with a prefix and "/". Thread-safe.

    Args:
        name: s3://bucket/prefix or gs://bucket/prefix, without a "/" at the end.
        settings: of the requests; None: those of this process. Certificates are always this
            machine's.

    Raises:
        ValueError: the name has no bucket or no prefix; boto3 is not installed; or gs:// has other
            credentials than an HMAC key.

    Methods raise FileNotFoundError, PermissionError or OSError, which have the object's name and
    the store's reason.
    """

    def __init__(self, name: str, settings: Settings | None = None) -> None:
        scheme, _, rest = name.partition("://")
        self._bucket, _, prefix = rest.partition("/")
        if not self._bucket or not prefix:
            raise ValueError(f"{name}: name a bucket and a prefix, such as {scheme}://bucket/pack")
        self._name, self._folder = name, f"{prefix}/"
        own = read_settings()
        used = own if settings is None else settings._replace(ca_bundle=own.ca_bundle)
        self._client, self._errors = _open_client(scheme.lower(), name, used)

    def size(self, file: str) -> int | None:
        """An object's size in bytes; None: there is no such object."""
        try:
            with self._named(file):
                found = self._client.head_object(Bucket=self._bucket, Key=self._folder + file)
        except FileNotFoundError:
            return None
        return int(found["ContentLength"])

    def names(self) -> list[str]:
        """Names of the objects below the prefix, without it."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._named(""):
            found = [one["Key"] for page in pages.paginate(Bucket=self._bucket, Prefix=self._folder)
                     for one in page.get("Contents", ())]
        return [key[len(self._folder):] for key in found]

    def read(self, file: str) -> bytes:
        with self._named(file):
            found = self._client.get_object(Bucket=self._bucket, Key=self._folder + file)
            return bytes(found["Body"].read())

    def write(self, file: str, data: bytes) -> None:
        with self._named(file):
            self._client.put_object(Bucket=self._bucket, Key=self._folder + file, Body=data)

    def upload(self, file: str, data: IO[bytes]) -> None:
        """Writes a file of any size. What was uploaded of it is removed after an error; a process
        that is killed leaves an upload that is no object, until the bucket's rules end it."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
        with self._named(file):
            self._client.upload_fileobj(data, self._bucket, self._folder + file, Config=config)

    def remove(self, file: str) -> None:
        with self._named(file):
            self._client.delete_object(Bucket=self._bucket, Key=self._folder + file)

    @contextmanager
    def _named(self, file: str) -> Iterator[None]:
        """Replaces boto3's exceptions."""
        try:
            yield
        except self._errors as error:
            number, why = _reason(error)
        else:
            return
        raise OSError(number, why, f"{self._name}/{file}" if file else self._name)


def has_gs_login() -> bool:
    """Whether the credentials for gs:// are a login of Google, which this file can't use, and no
    HMAC key. Raises ValueError as credentials.find()."""
    return "bearer_token" in credentials.find("gs").keys.values


def _open_client(
    scheme: str, name: str, settings: Settings
) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client for the store, and the exceptions that it raises."""
    try:
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise ValueError(f"{name}: objects are written by boto3, which is not installed: pip "
                         "install boto3") from None
    keys = credentials.find(scheme).keys.values
    if "bearer_token" in keys:
        raise ValueError(f"{name}: writing to gs:// needs an HMAC key, in GS_ACCESS_KEY_ID and "
                         "GS_SECRET_ACCESS_KEY; or, with Google's login, gcsfs: pip install gcsfs")
    pair = [keys.get(f"{'gs_' if scheme == 'gs' else ''}{one}") for one in
            ("access_key", "secret_key")]
    config = Config(
        retries={"mode": "standard", "total_max_attempts": settings.max_attempts or _ATTEMPTS},
        connect_timeout=settings.connect_timeout_ms / 1000 or _CONNECT_TIMEOUT_S,
        read_timeout=settings.stall_timeout_ms / 1000 or _READ_TIMEOUT_S,
        # Newer checksums are refused by stores that only resemble S3.
        request_checksum_calculation="when_required",
        **({} if pair[0] else {"signature_version": UNSIGNED}),
        **({"s3": {"addressing_style": "path"}} if _endpoint(scheme, settings) else {}),
    )
    client = boto3.session.Session(
        pair[0], pair[1], keys.get("session_token"), region_name=settings.region or "us-east-1",
    ).client("s3", endpoint_url=_endpoint(scheme, settings), config=config,
             verify=settings.ca_bundle or None)
    return client, (BotoCoreError, ClientError, Boto3Error)


def _endpoint(scheme: str, settings: Settings) -> str | None:
    if scheme == "gs":
        return settings.gs_endpoint_url or _GS_ENDPOINT
    return settings.endpoint_url or None


def _reason(error: Exception) -> tuple[int, str]:
    """An exception's errno and text, which has no secret: those of the store's answer, or of the
    connection."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return errno.EIO, str(error)
    status = str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    code = answer.get("Error", {}).get("Code", "")
    text = " ".join(dict.fromkeys(one for one in (status, code) if one))
    return _ERRNOS.get(status, errno.EIO), f"HTTP {text}"
