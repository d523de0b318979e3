"""moto's S3 server for tests."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest

POLICY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def started():
    """Yields (URL, access key, secret key) of a server that refuses wrong signatures and unknown
    keys. Skips the test without moto."""
    pytest.importorskip("moto.server")
    for _ in range(5):  # another process may take the port before the server does
        port = free_port()
        # Four requests are needed to make a user; all others need a valid signature.
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if is_open(port, server):
            break
    else:
        pytest.skip("moto's server ended at once")
    url = f"http://127.0.0.1:{port}"
    try:
        yield url, *make_user(url)
    finally:
        server.kill()
        server.wait()


def is_open(port, server):
    """Waits until the server listens, or has ended."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server.poll() is None
        except OSError:
            time.sleep(0.05)
    return False


def client_of(kind, url, key, secret):
    import boto3
    from botocore.config import Config

    config = Config(s3={"addressing_style": "path"})
    return boto3.session.Session(key, secret, region_name="us-east-1").client(
        kind, endpoint_url=url, config=config)


def make_user(url):
    iam = client_of("iam", url, "any", "any")
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=POLICY)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    # Uses up the last request that needs no signature.
    iam.list_users()
    return key["AccessKeyId"], key["SecretAccessKey"]
