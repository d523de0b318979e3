"""AWS's files of profiles: ``~/.aws/credentials`` and ``~/.aws/config``."""

from __future__ import annotations

import configparser
import os
from typing import NamedTuple

# What a profile has instead of keys if they must be requested first, which botocore can do.
_REQUESTED = ("role_arn", "sso_session", "sso_start_url", "credential_process",
              "web_identity_token_file", "login_session")


class Profile(NamedTuple):
    """What the files say about a profile; "": nothing. The keys are not shown by repr()."""

    name: str = ""
    region: str = ""
    endpoint_url: str = ""
    ca_bundle: str = ""
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    requested_by: str = ""  # the setting by which its keys are requested, such as "role_arn"

    def __repr__(self) -> str:
        return f"Profile({self.name!r})"


def read_profile() -> Profile:
    """The profile that AWS_PROFILE names, or "default".

    Raises:
        ValueError: AWS_PROFILE names a profile that no file has, or a file can't be parsed.
    """
    asked = os.environ.get("AWS_PROFILE", "") or os.environ.get("AWS_DEFAULT_PROFILE", "")
    name = asked or "default"
    config_file = _path("AWS_CONFIG_FILE", "~/.aws/config")
    keys_file = _path("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    config, keys = _parse(config_file), _parse(keys_file)
    # In the config file all but the default one are [profile NAME].
    section = f"profile {name}"
    if name == "default" and not config.has_section(section):
        section = name
    if asked and not config.has_section(section) and not keys.has_section(name):
        raise ValueError(
            f"AWS_PROFILE is {asked!r}, and neither {keys_file} nor {config_file} has this profile"
        )
    values = {**_items(config, section), **_items(keys, name)}
    requested_by = next((one for one in _REQUESTED if values.get(one)), "")
    return Profile(
        name,
        values.get("region", ""),
        _endpoint_of_s3(config, values),
        values.get("ca_bundle", ""),
        values.get("aws_access_key_id", ""),
        values.get("aws_secret_access_key", ""),
        values.get("aws_session_token", ""),
        requested_by,
    )


def _path(variable: str, default: str) -> str:
    return os.path.expanduser(os.environ.get(variable, "") or default)


def _parse(path: str) -> configparser.RawConfigParser:
    """A file of profiles; empty if it can't be read, as it then is for AWS's tools."""
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except OSError:
        pass
    except (configparser.Error, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line is not None else ""
        # The error's own text may show a line, and that a secret.
        raise ValueError(f"the file of AWS profiles {path}{where} can't be parsed") from None
    return parser


def _items(parser: configparser.RawConfigParser, section: str) -> dict[str, str]:
    if not parser.has_section(section):
        return {}
    return {name: value.strip() for name, value in parser.items(section)}


def _endpoint_of_s3(config: configparser.RawConfigParser, values: dict[str, str]) -> str:
    """The endpoint of the profile's services, else that of the profile."""
    services = _items(config, f"services {values.get('services', '')}")
    for source in (services.get("s3", ""), values.get("s3", "")):  # indented lines "name = value"
        for line in source.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "endpoint_url":
                return value.strip()
    return values.get("endpoint_url", "")
