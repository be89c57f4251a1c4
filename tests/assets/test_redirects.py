"""Where a server may send us on to."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading

import pytest

from madlite.assets.download import download, look
from madlite.assets.parts import Part
from madlite.assets.web import Source
from madlite.errors import RuntimeProblem
from madlite.safe_files import Folder
from tests.assets.hub_server import hub_server

DATA = b"0123456789" * 100


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of this machine's own, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key", "-out", folder / "cert"],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def secure(certificate):
    """A server that is spoken to by TLS alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    with hub_server(context) as hub:
        hub.files["/f"] = DATA
        hub.address = f"https://localhost:{hub.port}"
        yield hub


def fetch(url, folder, environ=None):
    """Have a file, by a look and by a download."""
    assert look(url, environ or {}).size == len(DATA)
    with Folder.open(folder) as opened:
        source = Source(url=url, size=len(DATA))
        download(source, Part(opened, "f.part"), environ or {}, lambda count: None, threading.Event())
    return (folder / "f.part").read_bytes()


@pytest.mark.parametrize("where", ["ftp://127.0.0.1/f", "file:///etc/passwd", "data:,x", "FILE:/etc/passwd", "x:y"])
def test_no_file_is_fetched_but_by_the_web(hub, tmp_path, where):
    hub.redirects["/f"] = where
    for ask in (lambda: look(f"{hub.url}/f", {}), lambda: fetch_alone(hub, tmp_path)):
        with pytest.raises(RuntimeProblem, match=r"sends us on to .*, and .* comes by http or https alone") as refused:
            ask()
        assert "\n" not in refused.value.message and refused.value.hint
    assert len(hub.asked) == 2 and list(tmp_path.iterdir()) == []


def fetch_alone(hub, folder):
    with Folder.open(folder) as opened:
        download(Source(url=f"{hub.url}/f"), Part(opened, "p"), {}, lambda count: None, threading.Event())


@pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/f", "data:,x"])
def test_an_address_that_is_none_of_the_web_is_refused_from_the_start(where):
    with pytest.raises(RuntimeProblem, match="no http address"):
        look(where, {})


def test_a_circle_ends_in_a_sentence(hub):
    hub.redirects |= {"/f": "/g", "/g": "/f"}
    with pytest.raises(RuntimeProblem, match="the server answered 302") as refused:
        look(f"{hub.url}/f", {})
    assert "\n" not in refused.value.message and len(hub.asked) <= 12


def test_what_is_asked_for_by_https_does_not_come_by_http(hub, secure, certificate, tmp_path):
    hub.files["/f"] = DATA
    secure.redirects["/plain"] = f"{hub.url}/f?signature=hush"
    trusting = {"REQUESTS_CA_BUNDLE": str(certificate / "cert")}
    assert fetch(f"{secure.address}/f", tmp_path, trusting) == DATA
    (tmp_path / "f.part").unlink()
    with pytest.raises(RuntimeProblem, match=r"on to http://127\.0\.0\.1/f, and .* comes by https alone") as told:
        fetch(f"{secure.address}/plain", tmp_path, trusting)
    assert hub.asked == [] and list(tmp_path.iterdir()) == [] and "hush" not in told.value.message


def test_what_is_asked_for_by_http_may_come_by_https(hub, secure, certificate, tmp_path):
    hub.redirects["/f"] = f"{secure.address}/f"
    secure.redirects["/on"] = "/f"
    hub.redirects["/twice"] = f"{secure.address}/on"
    trusting = {"REQUESTS_CA_BUNDLE": str(certificate / "cert")}
    assert fetch(f"{hub.url}/f", tmp_path, trusting) == DATA
    (tmp_path / "f.part").unlink()
    assert fetch(f"{hub.url}/twice", tmp_path, trusting) == DATA
