"""Finds the credentials for s3:// and gs:// names, as the tools of AWS and Google do.

For s3://: the environment, then the profile's files, then botocore where it is installed, which
knows instance and container roles, web identities, SSO and assumed roles. For gs://: the
environment, then google-auth where it is installed. Without any: anonymous.

Secrets are in no message, log, repr() or pickle.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from feedmill.remote.profiles import read_profile
from feedmill.remote.settings import is_on

# Names that GDAL (first) and Rust's object_store use; boto has none.
_ANONYMOUS_S3 = ("AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE")
_ANONYMOUS_GS = ("GS_NO_SIGN_REQUEST", "GOOGLE_SKIP_SIGNATURE")
# Set where a container or a Kubernetes service account gives the keys.
_BOTOCORE_VARIABLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_only",)


@dataclass(frozen=True)
class Keys:
    """Credentials of one store.

    Attributes:
        origin: where they were found, in words.
        values: arguments of ``_native.Remote.set_credentials``; empty: anonymous.
    """

    origin: str
    values: dict[str, str] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials can't be pickled or copied")


@dataclass(frozen=True)
class Found:
    """Credentials, and how to get them again.

    Attributes:
        keys: those of now.
        renew: returns the current ones, requesting new ones before the old ones expire; None: they
            don't change.
    """

    keys: Keys
    renew: Callable[[], Keys] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials can't be pickled or copied")


def find(scheme: str) -> Found:
    """The credentials for "s3" or "gs".

    Raises:
        ValueError: half of a pair of keys is set, or the profile needs a package that is missing.
        Exception: that of botocore or google-auth, if a configured source fails.
    """
    return _find_s3() if scheme == "s3" else _find_gs()


# ---- s3:// ---------------------------------------------------------------------------------------


def _find_s3() -> Found:
    if is_on(*_ANONYMOUS_S3):
        return Found(Keys("anonymous, as AWS_NO_SIGN_REQUEST or AWS_SKIP_SIGNATURE is set"))
    pair = _pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    if pair is not None:
        token = os.environ.get("AWS_SESSION_TOKEN", "") or os.environ.get("AWS_SECURITY_TOKEN", "")
        return Found(_s3_keys("AWS_ACCESS_KEY_ID in the environment", *pair, token))
    profile = read_profile()
    # As in AWS's tools, a role by web identity goes before the keys of a file.
    has_role = all(map(os.environ.get, ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")))
    if profile.access_key and not profile.requested_by and not has_role:
        return Found(_keys_of_profile(), _keys_of_profile)
    found = _from_botocore()
    if found is not None:
        return found
    needs = [one for one in _BOTOCORE_VARIABLES if os.environ.get(one)]
    if profile.requested_by:
        needs.append(f"{profile.requested_by} of the AWS profile {profile.name!r}")
    if needs and not _is_installed("botocore"):
        raise ValueError(
            f"the keys for s3:// names are given by {needs[0]}, for which feedmill needs botocore: "
            "pip install boto3"
        )
    # They may be made while this process runs, as by `aws sso login`.
    return Found(Keys("anonymous: no credentials were found"), lambda: _find_s3().keys)


def _s3_keys(origin: str, access_key: str, secret_key: str, token: str | None) -> Keys:
    values = {"access_key": access_key, "secret_key": secret_key}
    return Keys(origin, {**values, "session_token": token} if token else values)


def _keys_of_profile() -> Keys:
    """The keys in the files, which tools rewrite when they get new ones."""
    profile = read_profile()
    if not profile.access_key or not profile.secret_key:
        raise ValueError(
            f"the AWS profile {profile.name!r} has only one of aws_access_key_id and "
            "aws_secret_access_key"
        )
    origin = f"the AWS profile {profile.name!r}"
    return _s3_keys(origin, profile.access_key, profile.secret_key, profile.session_token)


def _from_botocore() -> Found | None:
    """What botocore finds; None: nothing, or it is not installed."""
    if not _is_installed("botocore"):
        return None
    credentials = importlib.import_module("botocore.session").Session().get_credentials()
    if credentials is None:
        return None

    def current() -> Keys:
        frozen = credentials.get_frozen_credentials()  # requests new ones if the old ones expire
        origin = f"botocore ({credentials.method})"
        return _s3_keys(origin, frozen.access_key, frozen.secret_key, frozen.token)

    return Found(current(), current)


# ---- gs:// ---------------------------------------------------------------------------------------


def _find_gs() -> Found:
    if is_on(*_ANONYMOUS_GS):
        return Found(Keys("anonymous, as GS_NO_SIGN_REQUEST or GOOGLE_SKIP_SIGNATURE is set"))
    pair = _pair("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY")
    if pair is not None:
        values = {"gs_access_key": pair[0], "gs_secret_key": pair[1]}
        return Found(Keys("GS_ACCESS_KEY_ID in the environment", values))
    if token := os.environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN", ""):
        origin = "CLOUDSDK_AUTH_ACCESS_TOKEN in the environment"
        return Found(Keys(origin, {"bearer_token": token}))
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return Found(Keys("anonymous, as STORAGE_EMULATOR_HOST is set"))
    if _is_installed("google.auth"):
        return _from_google_auth()
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        raise ValueError(
            "the credentials for gs:// names are given by GOOGLE_APPLICATION_CREDENTIALS, for "
            "which feedmill needs google-auth: pip install google-auth requests"
        )
    origin = "anonymous: no credentials were found, and google-auth is not installed"
    return Found(Keys(origin), lambda: _find_gs().keys)


def _from_google_auth() -> Found:
    auth = importlib.import_module("google.auth")
    requests = importlib.import_module("google.auth.transport.requests")
    try:
        credentials, _ = auth.default(scopes=list(_GOOGLE_SCOPES))
    except auth.exceptions.DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return Found(Keys("anonymous: google-auth found no credentials"), lambda: _find_gs().keys)

    def current() -> Keys:
        # Expired from 3:45 minutes before the end on; a token is renewed when it still has that.
        if not credentials.valid or getattr(credentials, "expired", False):
            credentials.refresh(requests.Request())
        return Keys("google-auth", {"bearer_token": credentials.token})

    return Found(current(), current)


# ---- both ----------------------------------------------------------------------------------------


def _pair(key: str, secret: str) -> tuple[str, str] | None:
    """The values of two variables; None: neither is set."""
    values = os.environ.get(key, ""), os.environ.get(secret, "")
    if all(values):
        return values
    if any(values):
        is_set, missing = (key, secret) if values[0] else (secret, key)
        raise ValueError(f"{is_set} is set in the environment, but {missing} is not; set both")
    return None


def _is_installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


