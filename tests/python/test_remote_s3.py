"""s3:// names against moto's server, which checks signatures; and signatures against botocore's."""

import feedmill
import helpers
import moto_server
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.cli import cli
from feedmill.data import ImageList, imread
from feedmill.remote import process
from helpers import compose, images_of
from moto_server import client_of
from object_server import ObjectServer, without_settings
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

pytest.importorskip("boto3")
botocore_auth = pytest.importorskip("botocore.auth")
pytestmark = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
BUCKET = "images"
ODD_KEYS = [
    "plain.jpg", "label=cat/a+b c.jpg", "ünïcode/日本.jpg", "double//slash.jpg", "a/../b/./c.jpg",
    "what?is#this&that;.jpg", "100%25.jpg", "it's(a)*key!.jpg", "a'b\"c<d>.jpg", "~tilde_-.jpg",
    "s3://in/a/key.jpg", "x" * 900 + ".jpg", "@:,$.jpg", "trailing/",
]


@pytest.fixture(scope="module")
def moto():
    with moto_server.started() as found:
        yield found


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    with without_settings(monkeypatch, tmp_path) as patch:
        yield patch


@pytest.fixture(scope="module")
def bucket(moto, small_images):
    """(ImageFolder, its paths, their names in the bucket)"""
    folder = ImageFolder(str(small_images), FIXED)
    paths = [path for path, _ in folder.samples]
    client = client_of("s3", *moto)
    client.create_bucket(Bucket=BUCKET)
    for i, path in enumerate(paths):
        client.put_object(Bucket=BUCKET, Key=f"train/{i}.jpg", Body=open(path, "rb").read())
    return folder, paths, [f"s3://{BUCKET}/train/{i}.jpg" for i in range(len(paths))]


@pytest.fixture
def keys(moto, environment):
    environment.setenv("AWS_ENDPOINT_URL", moto[0])
    environment.setenv("AWS_ACCESS_KEY_ID", moto[1])
    environment.setenv("AWS_SECRET_ACCESS_KEY", moto[2])
    return environment


def loader_of(names, **options):
    dataset = ImageList(names, transform=FIXED)
    return feedmill.DataLoader(dataset, **{"batch_size": 7, "native": "require", **options})


# ---- moto ----------------------------------------------------------------------------------------


def test_pixels_are_those_of_files(bucket, keys):
    folder, paths, names = bucket
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    loader = loader_of(names)
    assert f"read over the network: s3://{BUCKET}" in loader.explain()
    assert torch.equal(images_of(loader), expected)
    assert loader.stats().decode.fallback_samples == 0
    mixed = [name if i % 3 else path for i, (name, path) in enumerate(zip(names, paths))]
    assert torch.equal(images_of(loader_of(mixed)), expected)
    for options in ({"native": "off", "num_workers": 2}, {"native": "hybrid"}):
        assert torch.equal(images_of(loader_of(names, **options)), expected)
    assert np.array_equal(imread(names[3]), imread(paths[3]))


def test_packs_and_tar_objects(moto, bucket, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "pack"
    helpers.save_jpegs(tmp_path / "in" / "a", 12, 60, 50)
    assert cli.main(["pack", str(tmp_path / "in"), str(folder), "--shard-size", "10K"]) == 0
    client = client_of("s3", *moto)
    files = sorted(folder.iterdir())
    for file in files:
        client.put_object(Bucket=BUCKET, Key=f"a pack/{file.name}", Body=file.read_bytes())
    names = [f"s3://{BUCKET}/a pack/{one.name}" for one in files if one.suffix == ".tar"]
    assert len(names) > 1
    expected = images_of(TorchDataLoader(feedmill.Pack(folder, FIXED), 5))
    for make in (lambda: feedmill.Pack(f"s3://{BUCKET}/a pack/", FIXED),
                 lambda: feedmill.WebDataset(names, FIXED), lambda: feedmill.WebDataset(names, FIXED)):
        dataset = make()
        for options in ({"native": "require"}, {"native": "off", "num_workers": 2}):
            loader = feedmill.DataLoader(dataset, batch_size=5, **options)
            assert torch.equal(images_of(loader), expected)
    keys.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionError, match="HTTP 403"):
        make()


def test_odd_keys(moto, bucket, keys, tmp_path):
    client = client_of("s3", *moto)
    for i, key in enumerate(ODD_KEYS):
        data = helpers.save_jpeg(tmp_path / "a.jpg", 20 + i, 20, seed=i).read_bytes()
        client.put_object(Bucket=BUCKET, Key=key, Body=data)
        assert process.fetch(f"s3://{BUCKET}/{key}") == data, key
        assert process.fetch(f"s3://{BUCKET}/{key}", 7, 5) == data[7:12], key
    names = [f"s3://{BUCKET}/{key}" for key in ODD_KEYS]
    assert len(images_of(loader_of(names))) == len(names)


def test_wrong_secrets(bucket, keys):
    _, _, names = bucket
    keys.setenv("AWS_SECRET_ACCESS_KEY", "the-wrong-secret")
    with pytest.raises(PermissionError, match="HTTP 403.*SignatureDoesNotMatch") as caught:
        list(loader_of(names))
    assert names[0] in str(caught.value) and "dataset index 0" in str(caught.value)
    assert "the-wrong-secret" not in f"{caught.value!r} {caught.value}"
    with pytest.raises(PermissionError, match="HTTP 403"):
        process.fetch(names[0])
    keys.setenv("AWS_NO_SIGN_REQUEST", "YES")
    with pytest.raises(PermissionError, match="HTTP 403"):
        list(loader_of(names))


def test_missing_keys(bucket, keys):
    _, _, names = bucket
    gone = [*names[:5], f"s3://{BUCKET}/gone.jpg", *names[5:9]]
    with pytest.raises(FileNotFoundError, match="HTTP 404.*NoSuchKey.*dataset index 5") as caught:
        list(loader_of(gone))
    assert f"s3://{BUCKET}/gone.jpg" in str(caught.value)
    loader = loader_of(gone, on_error="skip")
    assert len(images_of(loader)) == 9
    (error,) = loader.stats().sample_errors
    assert error.index == 5 and "HTTP 404" in error.cause
    with pytest.raises(FileNotFoundError, match="HTTP 404"):
        list(loader_of(["s3://no-such-bucket/a.jpg"]))


def test_profile(moto, bucket, environment, tmp_path):
    _, _, names = bucket
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[other]\naws_access_key_id={moto[1]}\naws_secret_access_key={moto[2]}\n")
    (tmp_path / ".aws" / "config").write_text(
        f"[profile other]\nregion=us-east-1\nendpoint_url={moto[0]}\n")
    environment.setenv("AWS_PROFILE", "other")
    assert len(images_of(loader_of(names))) == len(names)
    assert process.origins() == {"s3": "the AWS profile 'other'"}


# ---- botocore's signatures -----------------------------------------------------------------------


def signed_by_botocore(url, headers, date, region, key, secret, token):
    """The Authorization header of botocore for the same request."""
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", url, headers={
        name: value for name, value in headers.items()
        if name in ("range", "if-match", "x-amz-content-sha256")})
    signer = auth.S3SigV4Auth(Credentials(key, secret, token), "s3", region)
    request.context["timestamp"] = date
    if token:
        request.headers["X-Amz-Security-Token"] = token
    request.headers["X-Amz-Date"] = date
    canonical = signer.canonical_request(request)
    text = signer.string_to_sign(request, canonical)
    names = signer.signed_headers(signer.headers_to_sign(request))
    return (f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, SignedHeaders={names}, "
            f"Signature={signer.signature(text, request)}")


@pytest.mark.parametrize("token", ["", "a-session/token+=="])
@pytest.mark.parametrize("region", ["us-east-1", "eu-west-3"])
def test_signatures_are_botocores(environment, token, region):
    objects = {f"/{BUCKET}/{key}": b"0123456789" for key in [*ODD_KEYS, "line\nbreak", "\x7f"]}
    with ObjectServer(objects) as server:
        for name, value in {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "AKID",
                            "AWS_SECRET_ACCESS_KEY": "secret/+", "AWS_SESSION_TOKEN": token,
                            "AWS_REGION": region}.items():
            environment.setenv(name, value)
        for path in objects:
            for n_bytes in (0, 4):
                process.fetch(f"s3:/{path}", 2 * (n_bytes > 0), n_bytes)
                sent, headers = server.requests[-1]
                assert headers.get("range") == ("bytes=2-5" if n_bytes else None)
                assert headers["authorization"] == signed_by_botocore(
                    server.url + sent, headers, headers["x-amz-date"], region, "AKID", "secret/+",
                    token), path


def test_paths_are_botocores(moto, bucket, keys):
    """The percent-encoding is that of boto3."""
    with ObjectServer({}) as server:
        client = client_of("s3", server.url, moto[1], moto[2])
        keys.setenv("AWS_ENDPOINT_URL", server.url)
        for key in ODD_KEYS:
            with pytest.raises(client.exceptions.ClientError):
                client.get_object(Bucket=BUCKET, Key=key)
            by_boto3 = server.requests[-1][0]
            with pytest.raises(FileNotFoundError):
                process.fetch(f"s3://{BUCKET}/{key}")
            assert server.requests[-1][0] == by_boto3
