"""A web server of made objects for tests, which records the requests that it gets."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # a connection that finds no place is tried again after a second
    daemon_threads = True

    def handle_error(self, *_):  # the client has gone
        pass


class ObjectServer:
    """Serves ``objects``, a dict from the path of a URL, decoded, to bytes, at ``url``.

    Attributes:
        requests: (path as sent, headers in lower case) of each request.
        etags: path -> ETag; If-Match and If-None-Match are honoured then.
        cuts: path -> number of responses that end in the middle of their body.
        status: called with the decoded path; another result than 200 is the response's status.
    """

    def __init__(self, objects):
        self.objects = dict(objects)
        self.requests = []
        self.etags = {}
        self.cuts = {}
        self.status = lambda path: 200
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def _handler(self):
        served = self

        class Handler(BaseHTTPRequestHandler):
            wbufsize = -1  # headers and body leave together
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                headers = {name.lower(): value for name, value in self.headers.items()}
                served.requests.append((self.path, headers))
                path = unquote(self.path.partition("?")[0], errors="surrogateescape")
                status = served.status(path)
                data = served.objects.get(path)
                if status == 200 and data is None:
                    status = 404
                etag = served.etags.get(path)
                if status == 200 and etag and headers.get("if-match", etag) != etag:
                    status = 412
                if status == 200 and etag and headers.get("if-none-match") == etag:
                    self.send_response(304)
                    self.send_header("ETag", etag)
                    self.end_headers()
                    return
                if status != 200:
                    data = b"<Error><Code>Refused</Code></Error>"
                elif "range" in headers:
                    first, last = headers["range"].removeprefix("bytes=").split("-")
                    end = min(len(data), int(last or len(data)) + 1)
                    content_range = f"bytes {first}-{end - 1}/{len(data)}"
                    data, status = data[int(first):end], 206
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", content_range)
                self.send_header("Content-Length", str(len(data)))
                if etag and status in (200, 206):
                    self.send_header("ETag", etag)
                self.end_headers()
                if served.cuts.get(path, 0) > 0:
                    served.cuts[path] -= 1
                    data = data[: len(data) // 2]
                    self.close_connection = True
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        return Handler

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def without_settings(monkeypatch, home):
    """Takes away all settings and credentials that the machine may have for object stores."""
    import os

    with monkeypatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "GS_", "GOOGLE_", "CLOUDSDK_", "FEEDMILL_REMOTE_")) or (
                name.lower() in ("http_proxy", "https_proxy", "all_proxy", "ssl_cert_file",
                                 "storage_emulator_host")
            ):
                patch.delenv(name)
        # A test that asks the network by mistake ends soon.
        patch.setenv("FEEDMILL_REMOTE_GIVE_UP", "20")
        patch.setenv("HOME", str(home))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("NO_GCE_CHECK", "true")
        yield patch
