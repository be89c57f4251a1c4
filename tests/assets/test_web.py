"""One file of the web below the folder of prepared data: whole under its name, or what came stays for the next try."""

from __future__ import annotations

import hashlib
import resource
import shutil
import ssl
import subprocess
import threading

import huggingface_hub
import pytest

from madlite.assets import web
from madlite.assets.paths import Stopped, find_asset
from madlite.assets.web import fetch_file, is_sound, look_up, part_of
from madlite.errors import RuntimeProblem
from madlite.model import Asset
from tests.assets.hub_server import hub_server

DATA = b"0123456789" * 30_000
WHOLE = len(DATA)


@pytest.fixture
def asset(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.files["/sets/text.bin"] = DATA
    return Asset(kind="dataset", ref=f"{hub.url}/sets/text.bin", source="url", path="sets/text.bin", env="DATA_DIR")


def fetch(asset, data, say=lambda text: None, tell=lambda count: None, stop=None, source=None):
    return fetch_file(asset, source or look_up(asset), data, say, tell, stop or threading.Event())


def begin(asset, data, beginning):
    part = part_of(asset, look_up(asset), data)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(beginning)
    return part


def test_every_byte_comes_and_is_counted(asset, tmp_path):
    counts = []
    assert fetch(asset, tmp_path, tell=counts.append).read_bytes() == DATA
    assert sum(counts) == WHOLE and find_asset(asset, tmp_path, tmp_path) == tmp_path / asset.path


def test_a_file_is_there_under_its_name_only_once_it_is_whole(hub, asset, tmp_path):
    hub.cut_after, hub.after_cut = 70_000, {"/sets": 503}
    with pytest.raises(RuntimeProblem, match="the server answered 503") as caught:
        fetch(asset, tmp_path)
    assert caught.value.hint == "68.4 KiB of it are kept for the next try"
    assert not (tmp_path / asset.path).exists() and find_asset(asset, tmp_path, tmp_path) is None
    hub.cut_after, hub.fail = None, {}
    assert fetch(asset, tmp_path).read_bytes() == DATA
    assert hub.gets()[-1] == ("/sets/text.bin", "bytes=70000-")
    assert [file.name for file in (tmp_path / "sets").iterdir()] == ["text.bin"]


def test_it_goes_on_from_what_is_there(hub, asset, tmp_path):
    begin(asset, tmp_path, DATA[:5000])
    counts = []
    assert fetch(asset, tmp_path, tell=counts.append).read_bytes() == DATA
    assert sum(counts) == WHOLE - 5000 and hub.gets() == [("/sets/text.bin", "bytes=5000-")]


def test_a_connection_that_breaks_again_and_again_is_gone_on_with(hub, asset, tmp_path):
    hub.cut_after = 80_000
    assert fetch(asset, tmp_path).read_bytes() == DATA
    assert [span for _, span in hub.gets()] == ["", "bytes=80000-", "bytes=160000-", "bytes=240000-"]


def test_a_server_that_falls_silent_costs_no_byte_that_came(hub, asset, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.hold_after = 200_000
    assert fetch(asset, tmp_path).read_bytes() == DATA
    assert [span for _, span in hub.gets()] == ["", "bytes=200000-"]


def test_a_server_that_knows_no_ranges_sends_all_of_it_again(hub, asset, tmp_path):
    hub.ranges = False
    begin(asset, tmp_path, DATA[:5000])
    assert fetch(asset, tmp_path).read_bytes() == DATA


def test_what_came_of_another_version_is_left(hub, asset, tmp_path):
    hub.cut_after, hub.after_cut = 70_000, {"/sets": 503}
    with pytest.raises(RuntimeProblem):
        fetch(asset, tmp_path)
    hub.cut_after, hub.fail = None, {}
    hub.files["/sets/text.bin"] = DATA[::-1]
    assert fetch(asset, tmp_path).read_bytes() == DATA[::-1]
    assert [file.name for file in (tmp_path / "sets").iterdir()] == ["text.bin"]


def test_a_part_that_is_longer_than_the_file_is_begun_anew(asset, tmp_path):
    begin(asset, tmp_path, DATA + b"more")
    assert fetch(asset, tmp_path).read_bytes() == DATA


def test_a_file_of_unknown_length_ends_with_its_answer(hub, asset, tmp_path):
    source = web.Source(url=asset.ref)
    assert fetch(asset, tmp_path, source=source).read_bytes() == DATA


def test_a_file_that_is_not_as_long_as_announced_is_refused(asset, tmp_path):
    with pytest.raises(RuntimeProblem, match=f"it has {WHOLE} bytes, and 99999999 were announced"):
        fetch(asset, tmp_path, source=web.Source(url=asset.ref, size=99999999))
    assert not list((tmp_path / "sets").iterdir())


def test_another_length_than_the_backend_knows_is_refused(asset):
    wrong = Asset(kind="dataset", ref=asset.ref, source="url", path="x", size_bytes=17)
    with pytest.raises(RuntimeProblem, match="has 300000 bytes, and should have 17"):
        look_up(wrong)


def test_a_whole_file_that_was_copied_there_is_taken(hub, asset, tmp_path):
    (tmp_path / "sets").mkdir()
    (tmp_path / asset.path).write_bytes(DATA)
    fetch(asset, tmp_path)
    assert hub.gets() == [] and find_asset(asset, tmp_path, tmp_path) is not None


def test_half_a_file_under_its_name_does_not_count(asset, tmp_path):
    fetch(asset, tmp_path)
    (tmp_path / asset.path).write_bytes(DATA[:10])
    assert find_asset(asset, tmp_path, tmp_path) is None
    assert fetch(asset, tmp_path).read_bytes() == DATA


def test_two_at_a_time_fetch_it_once(hub, asset, tmp_path):
    hub.hold_after = 1000
    said = []
    threads = [threading.Thread(target=fetch, args=(asset, tmp_path, said.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert hub.held.wait(240)
    while not said:
        threads[0].join(0.01)
        assert any(thread.is_alive() for thread in threads)
    hub.hold_after = None
    hub.hold.set()
    for thread in threads:
        thread.join()
    assert len(hub.gets()) == 1 and (tmp_path / asset.path).read_bytes() == DATA


def test_who_waits_for_another_leaves_where_it_is_ended(hub, asset, tmp_path):
    hub.hold_after = 1000
    first = threading.Thread(target=fetch, args=(asset, tmp_path))
    first.start()
    assert hub.held.wait(240)
    stop = threading.Event()
    with pytest.raises(Stopped):
        fetch(asset, tmp_path, stop=stop, say=lambda text: stop.set())
    hub.hold.set()
    first.join()


def test_a_stop_ends_it_and_keeps_what_came(asset, tmp_path):
    stop = threading.Event()
    with pytest.raises(Stopped):
        fetch(asset, tmp_path, stop=stop, tell=lambda count: stop.set())
    (part,) = (tmp_path / "sets").iterdir()
    assert 0 < part.stat().st_size < WHOLE and DATA.startswith(part.read_bytes())


def test_a_disk_that_refuses_is_no_trouble_of_the_network(hub, asset, tmp_path):
    source = look_up(asset)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fetch(asset, tmp_path, source=source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(hub.gets()) == 1


class TestAServer:
    def test_tells_size_and_version(self, asset):
        found = look_up(asset)
        assert found.size == WHOLE and found.etag

    def test_that_does_not_have_it_is_asked_once(self, hub, asset):
        hub.fail["/sets"] = 404
        with pytest.raises(RuntimeProblem, match="/sets/text.bin cannot be fetched: the server answered 404"):
            look_up(asset)
        assert len(hub.asked) == 1

    def test_without_heads_is_asked_for_the_file_itself(self, hub, asset):
        hub.fail["/sets"] = 405
        assert look_up(asset).size is None

    def test_that_is_not_there_is_told(self, asset, tmp_path):
        nowhere = Asset(kind="file", ref="http://127.0.0.1:9/f", source="url", path="f")
        with pytest.raises(RuntimeProblem, match="cannot be reached"):
            look_up(nowhere)
        with pytest.raises(RuntimeProblem, match="cannot be reached"):
            fetch(nowhere, tmp_path, source=web.Source(url=nowhere.ref, size=1))

    @pytest.mark.parametrize("where", ["file:///etc/passwd", "ftp://127.0.0.1/f", "data:,x", "no address"])
    def test_is_one_of_the_web(self, where):
        with pytest.raises(RuntimeProblem, match="no http address"):
            look_up(Asset(kind="file", ref=where, source="url", path="f"))


class TestChecksums:
    def test_wrong_bytes_of_the_right_length_are_found(self, tmp_path):
        name = hashlib.sha256(DATA).hexdigest()
        (tmp_path / "f").write_bytes(DATA)
        assert is_sound(tmp_path / "f", name) and is_sound(tmp_path / "f", "")
        (tmp_path / "f").write_bytes(DATA[::-1])
        assert not is_sound(tmp_path / "f", name)

    def test_the_right_one_is_taken_in_either_case(self, asset, tmp_path):
        for n, text in enumerate((hashlib.sha256(DATA).hexdigest(), hashlib.sha256(DATA).hexdigest().upper())):
            whole = Asset(kind="file", ref=asset.ref, source="url", path=f"{n}/text.bin", sha256=text)
            assert fetch(whole, tmp_path).read_bytes() == DATA
            assert find_asset(whole, tmp_path, tmp_path) is not None

    @pytest.mark.parametrize("resumed", [False, True])
    def test_another_file_is_refused_and_not_kept(self, asset, tmp_path, resumed):
        wrong = Asset(kind="file", ref=asset.ref, source="url", path="x/text.bin", sha256="0" * 64)
        if resumed:
            begin(wrong, tmp_path, DATA[:100])
        with pytest.raises(RuntimeProblem, match="its SHA-256 is not 0{64}") as refused:
            fetch(wrong, tmp_path)
        assert refused.value.hint and list((tmp_path / "x").iterdir()) == []
        assert find_asset(wrong, tmp_path, tmp_path) is None

    def test_a_file_that_lies_there_whole_is_checked_too(self, hub, asset, tmp_path):
        right = Asset(kind="file", ref=asset.ref, source="url", path="t", sha256=hashlib.sha256(DATA).hexdigest())
        (tmp_path / "t").write_bytes(DATA[::-1])
        assert fetch(right, tmp_path).read_bytes() == DATA and len(hub.gets()) == 1

    def test_what_is_no_checksum_is_refused_unasked(self, hub, asset):
        odd = Asset(kind="file", ref=asset.ref, source="url", path="t", sha256="md5:123")
        with pytest.raises(RuntimeProblem, match="'md5:123' is no SHA-256"):
            look_up(odd)
        assert hub.asked == []


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
def secure(certificate, monkeypatch):
    """A server that is spoken to by TLS alone, and trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))
    huggingface_hub.close_session()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    with hub_server(context) as hub:
        hub.files["/f"] = DATA
        hub.address = f"https://localhost:{hub.port}"
        yield hub
    huggingface_hub.close_session()


def at(url):
    return Asset(kind="file", ref=url, source="url", path="f")


class TestRedirects:
    @pytest.mark.parametrize("where", ["ftp://127.0.0.1/f", "file:///etc/passwd", "x:y"])
    def test_no_file_is_fetched_but_by_the_web(self, hub, tmp_path, where):
        hub.redirects["/f"] = where
        for ask in (lambda: look_up(at(f"{hub.url}/f")), lambda: alone(hub, tmp_path)):
            with pytest.raises(RuntimeProblem, match="cannot be fetched") as refused:
                ask()
            assert "\n" not in refused.value.message
        assert not any(file.stat().st_size for file in tmp_path.rglob("f*"))

    def test_a_circle_ends_in_a_sentence(self, hub):
        hub.redirects |= {"/f": "/g", "/g": "/f"}
        with pytest.raises(RuntimeProblem, match="redirects"):
            look_up(at(f"{hub.url}/f"))

    def test_what_is_asked_for_by_https_does_not_come_by_http(self, hub, secure, tmp_path):
        hub.files["/f"] = DATA
        secure.redirects["/plain"] = f"{hub.url}/f?signature=hush"
        assert fetch(at(f"{secure.address}/f"), tmp_path).read_bytes() == DATA
        with pytest.raises(RuntimeProblem, match=r"sends us on to http, and what is asked for by https") as told:
            look_up(at(f"{secure.address}/plain"))
        assert "hush" not in told.value.message and hub.gets() == []

    def test_what_is_asked_for_by_http_may_come_by_https(self, hub, secure, tmp_path):
        secure.redirects["/on"] = "/f"
        for n, where in enumerate(("/f", "/on")):
            hub.redirects["/f"] = f"{secure.address}{where}"
            assert fetch(at(f"{hub.url}/f"), tmp_path / str(n)).read_bytes() == DATA


def alone(hub, folder):
    return fetch(at(f"{hub.url}/f"), folder, source=web.Source(url=f"{hub.url}/f"))
