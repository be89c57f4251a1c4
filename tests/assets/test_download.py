"""A file comes in full or leaves what came for the next try."""

from __future__ import annotations

import hashlib
import resource
import threading

import pytest

from madlite.assets import download as module
from madlite.assets import tries, web
from madlite.assets.digest import Digest
from madlite.assets.download import download, look
from madlite.assets.locks import Stopped
from madlite.assets.parts import Part
from madlite.assets.web import Source
from madlite.errors import RuntimeProblem
from madlite.safe_files import Folder

DATA = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(tries, "TRIES", 2)


@pytest.fixture
def part(tmp_path):
    return tmp_path / "file.part"


def to(path):
    return Part(Folder.open(path.parent), path.name)


WHOLE = len(DATA)


class Impatient(threading.Event):
    """Does not wait between tries."""

    def wait(self, timeout=None):
        return self.is_set()


def fetch(hub, part, size=WHOLE, etag="", tell=lambda count: None, stop=None, path="/f"):
    hub.files.setdefault(path, DATA)
    download(Source(url=f"{hub.url}{path}", size=size, etag=etag), to(part), {}, tell, stop or Impatient())


def test_every_byte_comes_and_is_counted(hub, part):
    counts = []
    fetch(hub, part, tell=counts.append)
    assert part.read_bytes() == DATA and sum(counts) == len(DATA)


def test_it_goes_on_from_what_is_there(hub, part):
    part.write_bytes(DATA[:5000])
    counts = []
    fetch(hub, part, tell=counts.append)
    assert part.read_bytes() == DATA and sum(counts) == len(DATA) - 5000
    assert hub.gets() == [("/f", "bytes=5000-")]


def test_a_connection_that_breaks_again_and_again_is_gone_on_with(hub, part):
    hub.cut_after = 300_000
    fetch(hub, part)
    assert part.read_bytes() == DATA
    assert [span for _, span in hub.gets()] == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]


def test_a_server_that_knows_no_ranges_sends_all_of_it_again(hub, part):
    hub.ranges = False
    part.write_bytes(DATA[:5000])
    counts = []
    fetch(hub, part, tell=counts.append)
    assert part.read_bytes() == DATA and sum(counts) == len(DATA) - 5000


def test_another_version_is_not_joined_to_what_came_of_the_first(hub, part):
    part.write_bytes(b"old" * 1000)
    fetch(hub, part, etag='"of the old one"')
    assert part.read_bytes() == DATA


def test_a_part_that_is_longer_than_the_file_is_begun_anew(hub, part):
    part.write_bytes(DATA + b"more")
    fetch(hub, part)
    assert part.read_bytes() == DATA


def test_a_file_of_unknown_length_ends_with_its_answer(hub, part):
    fetch(hub, part, size=None)
    assert part.read_bytes() == DATA


def test_a_file_that_is_not_as_long_as_announced_is_refused(hub, part):
    with pytest.raises(RuntimeProblem, match=f"it has {len(DATA)} bytes, and 99999999 were announced"):
        fetch(hub, part, size=99999999)


def test_what_the_server_does_not_have_is_told_at_once(hub, part):
    hub.fail["/gone"] = 404
    with pytest.raises(RuntimeProblem, match="/gone cannot be fetched: the server answered 404"):
        fetch(hub, part, path="/gone")
    assert len(hub.gets()) == 1


def test_a_server_in_trouble_is_asked_again_and_what_came_is_kept(hub, part):
    part.write_bytes(DATA[:4096])
    hub.fail["/f"] = 503
    with pytest.raises(RuntimeProblem, match="503") as caught:
        fetch(hub, part)
    assert len(hub.gets()) == 2 and caught.value.hint == "4.0 KiB of it are kept for the next try"
    assert part.read_bytes() == DATA[:4096]


def test_nobody_answers(part):
    with pytest.raises(RuntimeProblem, match="cannot be reached"):
        download(Source(url="http://127.0.0.1:9/f", size=1), to(part), {}, lambda count: None, Impatient())
    with pytest.raises(RuntimeProblem, match="cannot be reached"):
        look("http://127.0.0.1:9/f", {})


def test_only_http_is_fetched(part):
    with pytest.raises(RuntimeProblem, match="no http address"):
        look("file:///etc/passwd", {})


def test_a_stop_ends_it_within_a_chunk_and_keeps_what_came(hub, part):
    stop = threading.Event()
    with pytest.raises(Stopped):
        fetch(hub, part, stop=stop, tell=lambda count: stop.set())
    assert 0 < part.stat().st_size < len(DATA) and DATA.startswith(part.read_bytes())


def test_a_disk_that_refuses_is_no_trouble_of_the_network(hub, part):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RuntimeProblem, match="cannot be written"):
            fetch(hub, part)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(hub.gets()) == 1


def test_looking_tells_size_and_version(hub):
    hub.files["/f"] = DATA
    found = look(f"{hub.url}/f", {})
    assert found.size == len(DATA) and found.etag


def test_a_server_without_heads_is_asked_for_the_file_itself(hub):
    hub.fail["/f"] = 405
    assert look(f"{hub.url}/f", {}).size is None


def test_a_server_that_falls_silent_costs_no_byte_that_came(hub, part, monkeypatch):
    monkeypatch.setattr(web, "SILENT_S", 0.05)
    monkeypatch.setattr(module, "CHUNK_BYTES", 1 << 20)
    hub.files["/f"] = DATA[:25_000]
    hub.hold_after = 10_000
    fetch(hub, part, size=25_000)
    assert part.read_bytes() == DATA[:25_000]
    assert [span for _, span in hub.gets()] == ["", "bytes=10000-", "bytes=20000-"]


def test_looking_waits_for_a_server_in_trouble(hub):
    hub.files["/lab/f"] = DATA
    hub.fail_first = [503]
    assert look(f"{hub.url}/lab/f", {}).size == len(DATA)


def test_a_pause_that_the_server_asks_for_is_kept(hub, part):
    pauses = []

    class Noting(Impatient):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return False

    hub.files["/lab/f"] = DATA
    hub.fail_first, hub.retry_after = [429], "7"
    fetch(hub, part, path="/lab/f", stop=Noting())
    assert pauses == [7.0] and part.read_bytes() == DATA


def test_a_server_that_wants_to_be_left_alone_for_long_is(hub, part):
    hub.fail["/f"], hub.retry_after = 429, "900"
    with pytest.raises(RuntimeProblem, match="429 .*, and asks to wait 900 s"):
        fetch(hub, part)
    assert len(hub.gets()) == 1


@pytest.mark.parametrize("resumed", [0, 5000])
def test_every_byte_is_heard_for_the_digest(hub, part, resumed):
    if resumed:
        part.write_bytes(DATA[:resumed])
    hub.cut_after = 300_000
    digest = Digest(hashlib.sha256(DATA).hexdigest(), WHOLE)
    hub.files["/f"] = DATA
    download(Source(url=f"{hub.url}/f", size=WHOLE), to(part), {}, lambda count: None, Impatient(), digest)
    assert digest.fits()
