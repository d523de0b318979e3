"""Where the credentials for s3:// and gs:// names come from, and that they are shown nowhere. Without
a network: boto3's and Google's libraries are replaced."""

import copy
import datetime
import gc
import io
import logging
import pickle
import sys
import time
import types
import weakref

import feedmill
import pytest
from feedmill._ops import native
from feedmill.data import ImageList
from feedmill.remote import credentials, process, profiles, settings
from helpers import compose, save_jpeg
from object_server import ObjectServer, without_settings
from torchvision import transforms as T

SECRETS = ("the-secret-key", "the-session-token", "the-bearer-token")
KEY, SECRET, TOKEN = "AKIDEXAMPLE", *SECRETS[:2]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Without any settings, and as if botocore and google-auth were not installed."""
    with without_settings(monkeypatch, tmp_path) as patch:
        for name in ("botocore", "botocore.session", "google.auth",
                     "google.auth.transport.requests"):
            patch.setitem(sys.modules, name, None)
        yield patch


@pytest.fixture
def files(tmp_path):
    """A function that writes the two files of profiles."""
    folder = tmp_path / ".aws"
    folder.mkdir()

    def write(credentials="", config=""):
        (folder / "credentials").write_text(credentials)
        (folder / "config").write_text(config)

    return write


def values_of(scheme="s3"):
    return credentials.find(scheme).keys.values


# ---- the environment -----------------------------------------------------------------------------


def test_nothing_is_anonymous(environment):
    found = credentials.find("s3")
    assert found.keys.values == {}
    assert found.keys.origin == "anonymous: no credentials were found"
    assert values_of("gs") == {}
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)  # looked for again, as after `aws sso login`
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert found.renew().values["access_key"] == KEY


def test_environment(environment):
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY is not"):
        credentials.find("s3")
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert values_of() == {"access_key": KEY, "secret_key": SECRET}
    environment.setenv("AWS_SESSION_TOKEN", TOKEN)
    assert values_of() == {"access_key": KEY, "secret_key": SECRET, "session_token": TOKEN}
    assert values_of("gs") == {}  # AWS's keys are not for Google
    environment.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID is not") as caught:
        credentials.find("s3")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE"])
def test_anonymous_on_request(environment, name):
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    environment.setenv(name, "YES")
    assert values_of() == {}
    environment.setenv(name, "no")
    assert values_of()["access_key"] == KEY


def test_google_environment(environment):
    environment.setenv("GS_ACCESS_KEY_ID", "GOOG1")
    environment.setenv("GS_SECRET_ACCESS_KEY", SECRET)
    assert values_of("gs") == {"gs_access_key": "GOOG1", "gs_secret_key": SECRET}
    assert values_of() == {}
    environment.setenv("GS_NO_SIGN_REQUEST", "1")
    assert values_of("gs") == {}
    environment.delenv("GS_NO_SIGN_REQUEST")
    environment.delenv("GS_ACCESS_KEY_ID")
    with pytest.raises(ValueError, match="GS_ACCESS_KEY_ID is not"):
        credentials.find("gs")
    environment.delenv("GS_SECRET_ACCESS_KEY")
    environment.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", SECRETS[2])
    assert values_of("gs") == {"bearer_token": SECRETS[2]}


def test_settings_from_the_environment(environment):
    environment.delenv("FEEDMILL_REMOTE_GIVE_UP")
    assert settings.read_settings() == ("", "", "", "", 0, 0, 0, 0, 0, 2)
    for name, value in {
        "AWS_ENDPOINT_URL": "http://a", "AWS_DEFAULT_REGION": "eu-west-1", "AWS_CA_BUNDLE": "/ca",
        "FEEDMILL_REMOTE_REQUESTS": "17", "FEEDMILL_REMOTE_ATTEMPTS": "3",
        "FEEDMILL_REMOTE_CONNECT_TIMEOUT": "1.5", "FEEDMILL_REMOTE_STALL_TIMEOUT": "2",
        "FEEDMILL_REMOTE_GIVE_UP": "60", "FEEDMILL_REMOTE_HEDGE": "0", "STORAGE_EMULATOR_HOST": "http://g",
    }.items():
        environment.setenv(name, value)
    assert settings.read_settings() == (
        "http://a", "http://g", "eu-west-1", "/ca", 17, 3, 1500, 2000, 60000, 0)
    environment.setenv("AWS_ENDPOINT_URL_S3", "http://b")
    environment.setenv("AWS_REGION", "eu-north-1")
    assert settings.read_settings()[:3] == ("http://b", "http://g", "eu-north-1")
    environment.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert settings.read_settings().endpoint_url == ""


# ---- profiles ------------------------------------------------------------------------------------

PROFILES = """
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = the-secret-key
[other]
aws_access_key_id = OTHER
aws_secret_access_key = the-secret-key
aws_session_token = the-session-token
"""
CONFIG = """
[default]
region = eu-west-1
[profile other]
region = eu-west-2
endpoint_url = http://other
services = mine
[profile plain]
endpoint_url = http://plain
[services mine]
s3 =
  endpoint_url = http://services
"""


def test_profiles(environment, files):
    files(PROFILES, CONFIG)
    assert values_of() == {"access_key": "DEFAULT", "secret_key": SECRET}
    assert settings.read_settings()[:3] == ("", "", "eu-west-1")
    environment.setenv("AWS_PROFILE", "other")
    assert values_of() == {"access_key": "OTHER", "secret_key": SECRET, "session_token": TOKEN}
    assert credentials.find("s3").keys.origin == "the AWS profile 'other'"
    assert settings.read_settings()[:3] == ("http://services", "", "eu-west-2")
    environment.setenv("AWS_PROFILE", "plain")
    assert values_of() == {}
    assert settings.read_settings()[:3] == ("http://plain", "", "")
    # The environment comes first.
    environment.setenv("AWS_REGION", "eu-west-3")
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert settings.read_settings().region == "eu-west-3"
    assert values_of()["access_key"] == KEY


def test_files_in_other_places(environment, tmp_path):
    (tmp_path / "keys").write_text(PROFILES)
    (tmp_path / "settings").write_text(CONFIG)
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    environment.setenv("AWS_CONFIG_FILE", "~/settings")
    assert values_of()["access_key"] == "DEFAULT"
    assert settings.read_settings().region == "eu-west-1"


def test_invalid_profiles(environment, files):
    files(PROFILES, CONFIG)
    environment.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(ValueError, match="AWS_PROFILE is 'nowhere', and neither .*credentials nor"):
        credentials.find("s3")
    environment.delenv("AWS_PROFILE")
    files("[default]\naws_access_key_id = A\n")
    with pytest.raises(ValueError, match="only one of aws_access_key_id"):
        credentials.find("s3")
    files("[default]\nthe-secret-key\n", CONFIG)
    with pytest.raises(ValueError, match="credentials.* can't be parsed") as caught:
        credentials.find("s3")
    assert SECRET not in str(caught.value) and caught.value.__context__ is not None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("setting", ["role_arn", "sso_session", "credential_process",
                                     "web_identity_token_file"])
def test_profiles_that_need_botocore(files, setting):
    files("", f"[default]\n{setting} = something\n")
    with pytest.raises(ValueError, match=f"{setting} of the AWS profile 'default'.*boto3"):
        credentials.find("s3")


def test_roles_that_need_botocore(environment):
    environment.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    with pytest.raises(ValueError, match=r"AWS_WEB_IDENTITY_TOKEN_FILE.*pip install boto3"):
        credentials.find("s3")


def test_applications_that_need_google_auth(environment):
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/file.json")
    with pytest.raises(ValueError, match=r"pip install google-auth"):
        credentials.find("gs")


# ---- botocore and google-auth --------------------------------------------------------------------


class Frozen:
    def __init__(self, number):
        self.access_key, self.secret_key, self.token = f"KEY{number}", SECRET, TOKEN


class FakeBotocore:
    """Instance credentials; ``n`` says how often they were asked for."""

    def __init__(self, patch, has_any=True):
        self.n = 0
        self.fails = False
        session = types.ModuleType("botocore.session")
        session.Session = lambda: types.SimpleNamespace(
            get_credentials=lambda: self if has_any else None)
        patch.setitem(sys.modules, "botocore", types.ModuleType("botocore"))
        patch.setitem(sys.modules, "botocore.session", session)

    method = "iam-role"

    def get_frozen_credentials(self):
        if self.fails:
            raise RuntimeError("the instance's metadata can't be read")
        self.n += 1
        return Frozen(self.n)


def test_botocore(environment):
    FakeBotocore(environment)
    found = credentials.find("s3")
    assert found.keys.origin == "botocore (iam-role)"
    assert found.keys.values == {
        "access_key": "KEY1", "secret_key": SECRET, "session_token": TOKEN}
    assert found.renew().values["access_key"] == "KEY2"
    FakeBotocore(environment, has_any=False)
    assert values_of() == {}


def test_google_auth(environment):
    class Credentials:
        valid, token, n = False, None, 0

        def refresh(self, request):
            assert request == "a request"
            self.n += 1
            self.valid, self.token = True, f"token{self.n}"

    one = Credentials()
    auth, requests = types.ModuleType("google.auth"), types.ModuleType("requests")
    asked = []
    auth.default = lambda scopes: (asked.extend(scopes), (one, "project"))[1]
    auth.exceptions = types.SimpleNamespace(DefaultCredentialsError=KeyError)
    requests.Request = lambda: "a request"
    environment.setitem(sys.modules, "google.auth", auth)
    environment.setitem(sys.modules, "google.auth.transport.requests", requests)
    found = credentials.find("gs")
    assert found.keys.values == {"bearer_token": "token1"}
    assert asked == ["https://www.googleapis.com/auth/devstorage.read_only"]
    assert found.renew().values == {"bearer_token": "token1"}
    one.valid = False
    assert found.renew().values == {"bearer_token": "token2"}

    def fail(scopes):
        raise KeyError("none")

    auth.default = fail
    assert values_of("gs") == {}


# ---- in use --------------------------------------------------------------------------------------

needs_libcurl = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")


@pytest.fixture
def server(environment, tmp_path):
    data = save_jpeg(tmp_path / "a.jpg", 20, 20).read_bytes()
    with ObjectServer({"/bucket/a.jpg": data}) as server:
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        environment.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def sent_by(server):
    return server.requests[-1][1].get("authorization", "")


@needs_libcurl
def test_credentials_are_found_when_they_are_needed(environment, server):
    botocore = FakeBotocore(environment)
    process.fetch(f"{server.url}/bucket/a.jpg")
    assert (botocore.n, sent_by(server)) == (0, "")
    process.fetch("s3://bucket/a.jpg")
    assert botocore.n == 1 and "Credential=KEY1/" in sent_by(server)
    assert server.requests[-1][1]["x-amz-security-token"] == TOKEN
    process.fetch("s3://bucket/a.jpg")
    assert botocore.n == 1
    assert process.origins() == {"s3": "botocore (iam-role)"}


@needs_libcurl
def test_renewed_credentials_are_used(environment, server):
    botocore = FakeBotocore(environment)
    environment.setattr(process, "_RENEWAL_S", 0.01)
    environment.setenv("FEEDMILL_REMOTE_REQUESTS", "11")  # a Remote of this test's own
    process.fetch("s3://bucket/a.jpg")
    deadline_s = time.monotonic() + 60
    while "Credential=KEY1/" in sent_by(server) and time.monotonic() < deadline_s:
        process.fetch("s3://bucket/a.jpg")
    assert "Credential=KEY1/" not in sent_by(server)
    botocore.fails = True  # the last ones stay
    before = sent_by(server)
    process.fetch("s3://bucket/a.jpg")
    assert "Credential=KEY" in before and "Credential=KEY" in sent_by(server)
    # The thread ends with the Remote.
    keeper = weakref.ref(process._current.opened.keeper)
    environment.setenv("FEEDMILL_REMOTE_REQUESTS", "12")
    process.shared()
    while keeper() is not None and time.monotonic() < deadline_s:
        gc.collect()
    assert keeper() is None


@needs_libcurl
def test_rewritten_files_are_read_again(files, server):
    files(PROFILES)
    process.fetch("s3://bucket/a.jpg")
    assert "Credential=DEFAULT/" in sent_by(server)
    files(PROFILES.replace("DEFAULT", "NEWER"))
    process._current.opened.keeper.renew()
    process.fetch("s3://bucket/a.jpg")
    assert "Credential=NEWER/" in sent_by(server)
    files("[default]\nhalf a file")
    process._current.opened.keeper.renew()
    process.fetch("s3://bucket/a.jpg")
    assert "Credential=NEWER/" in sent_by(server)


@needs_libcurl
def test_each_store_gets_its_own(environment, server):
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    environment.setenv("AWS_SESSION_TOKEN", TOKEN)
    environment.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", SECRETS[2])
    process.fetch("s3://bucket/a.jpg")
    process.fetch("gs://bucket/a.jpg")
    assert server.requests[-1][1]["authorization"] == "Bearer the-bearer-token"
    assert "x-amz-security-token" not in server.requests[-1][1]
    process.fetch("s3://bucket/a.jpg")
    assert f"Credential={KEY}/" in sent_by(server) and "bearer" not in str(server.requests[-1])
    process.fetch(f"{server.url}/bucket/a.jpg")
    assert not {"authorization", "x-amz-security-token"} & server.requests[-1][1].keys()


@needs_libcurl
def test_an_error_reaches_the_loader(environment, server):
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    dataset = ImageList(["s3://bucket/a.jpg"], transform=compose(T.Resize((8, 8)), T.ToTensor()))
    loader = feedmill.DataLoader(dataset, native="require")
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY is not"):
        list(loader)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert len(list(loader)) == 1


# ---- secrets -------------------------------------------------------------------------------------


@needs_libcurl
def test_secrets_are_shown_nowhere(environment, server, caplog):
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    environment.setenv("AWS_SESSION_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    dataset = ImageList(["s3://bucket/a.jpg", "s3://bucket/gone.jpg"],
                        transform=compose(T.Resize((8, 8)), T.ToTensor()))
    loader = feedmill.DataLoader(dataset, native="require", on_error="zero")
    assert len(list(loader)) == 2
    found, remote = credentials.find("s3"), process.shared()
    texts = [repr(found), str(found), repr(found.keys), repr(remote), str(remote), repr(loader),
             loader.explain(), loader.report(), repr(loader.stats()), caplog.text,
             repr(process.origins()), repr(vars(process._current)), repr(loader.state_dict())]
    kept = io.BytesIO()
    pickle.dump((dataset, loader.state_dict()), kept)
    texts.append(kept.getvalue().decode("latin-1"))
    for secret in SECRETS:
        assert not any(secret in text for text in texts)
    for one in (found, found.keys, remote):
        with pytest.raises(TypeError):
            pickle.dumps(one)
        with pytest.raises(TypeError):
            copy.deepcopy(one)


def test_profiles_are_not_shown(files):
    files(PROFILES)
    profile = profiles.read_profile()
    assert profile.secret_key == SECRET
    assert repr(profile) == "Profile('default')" and SECRET not in f"{profile}"


@needs_libcurl
@pytest.mark.parametrize("values", [
    {"access_key": "the-secret-key"}, {"secret_key": "the-secret-key"},
    {"access_key": "the-secret-key\n", "secret_key": "x"}, {"bearer_token": "the-secret-key\r\n"},
    {"session_token": "the-secret-key é"}, {"gs_secret_key": "the-secret-key"},
])
def test_invalid_credentials_are_not_shown(values):
    remote = native.Remote()
    with pytest.raises(ValueError) as caught:
        remote.set_credentials(**values)
    assert SECRET not in str(caught.value)


@needs_libcurl
def test_expired_date_is_not_cached(server, environment):
    """Each request has the date of its own time."""
    environment.setenv("AWS_ACCESS_KEY_ID", KEY)
    environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    process.fetch("s3://bucket/a.jpg")
    sent = datetime.datetime.strptime(server.requests[-1][1]["x-amz-date"], "%Y%m%dT%H%M%SZ")
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    assert abs(now - sent) < datetime.timedelta(hours=1)
