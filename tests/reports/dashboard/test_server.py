"""`madlite dashboard` as a process: what it answers, what it refuses, and that nothing in a folder becomes markup."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.model import Card, Check, Machine, Metric, Place, Result, Status, Study, Variant
from madlite.reports.dashboard.live import Live
from madlite.reports.dashboard.pages import RunsQuery, parsed
from madlite.reports.index import RunIndex
from madlite.reports.runs import list_runs
from madlite.store.folder import LOCK, STEPS, RunFolder
from tests import commands
from tests.cli.stored_runs import good, store
from tests.factories import WINDOW, make_plan
from tests.reports.dashboard.dashboards import PLAIN, dashboard
from tests.rows import each_row
from tests.waiting import wait_until

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 70007*70003 }}</script><!--"
TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
RUN = "20260102T03{n:02d}05-llama-00000{n}"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with runs of a series, one of a card whose texts mean harm, and a failure."""
    folder = tmp_path_factory.mktemp("runs")
    for n in range(4):
        metric = Metric(metric="tokens_per_s_per_gpu", text=f"900{n}.5", status=Status.SUCCESS, value=9000.5 + n)
        told = good("a", f"2026-01-02T03:{n:02d}:05+00:00", metrics=(metric,), window=WINDOW, steps=20)
        keep(folder, RUN.format(n=n), told, card=Card(name="llama", root=folder, source="x", tags=("pyt",)))
    steps = [
        {"n": n, "rank": 0, "phase": "train", "values": {"tokens/s/GPU": 9000.0 + n, "loss": 3 / n}}
        for n in range(1, 21)
    ]
    newest = folder / "madlite_runs" / RUN.format(n=3)
    (newest / STEPS).write_text("".join(json.dumps(step) + "\n" for step in steps))
    hostile = Card(name=HOSTILE, root=folder, source=HOSTILE, tags=(HOSTILE,), url="javascript:alert(3)")
    keep(
        folder,
        "20260102T040000-hostile-00000a",
        good("h", suspect=(HOSTILE,), findings=(HOSTILE,)),
        card=hostile,
        backend=HOSTILE,
        machine=Machine(device=HOSTILE, hostname=HOSTILE),
        log=f"{HOSTILE}\n\x1b[31mred\x1b[0m \x1b]0;title\x07\nexport HF_TOKEN={TOKEN}\n".encode(),
    )
    failed = Result(
        plan_id="f", status=Status.FAILURE, reason=f"it ended: {HOSTILE} {TOKEN}", started="2026-01-02T05:00:00+00:00"
    )
    keep(folder, "20260102T050000-llama-00000f", failed, card=Card(name="llama", root=folder, source="x"))
    return folder


def keep(folder: Path, run_id: str, outcome: Result, **changes: object) -> None:
    known = {
        "machine": Machine(device="MI300X", hostname="node-1"),
        "place": Place(gpus_per_node=8),
        "variant": Variant(model="llama", mode="pretrain", precision="FP8", seq_len=8192, steps=20),
    }
    store(folder, run_id, outcome, **{**known, **changes})


@pytest.fixture(scope="module")
def server(place):
    with dashboard(place) as started:
        yield started


@pytest.fixture
def get(server):
    with httpx.Client(base_url=server.url, headers=server.headers, **PLAIN) as client:
        yield client.get


def got(address: str, **options: object) -> httpx.Response:
    """Return what somebody gets who has nothing but the address."""
    return httpx.get(address, **PLAIN, **options)


# Without a process: names and parameters.


def test_parameters_are_typed():
    query = parsed(RunsQuery, {"limit": "7", "descending": "false", "card": "llama", "q": "a,b c", "status": ""})
    assert (query.limit, query.descending, query.columns) == (7, False, {"card": "llama"})


@each_row(
    ("given", "why"),
    [
        ({"limit": "0"}, "limit"),
        ({"offset": "x"}, "offset"),
        ({"order": "id; DROP"}, "order"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_parameters_that_cannot_be_used_are_named(given, why):
    with pytest.raises(Exception, match=why):
        parsed(RunsQuery, given)


def test_without_its_packages_one_sentence_says_so(place, capsys, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    assert call(["dashboard", "--dir", str(place)]) == 4
    assert "needs uvicorn\n hint: pip install 'madlite[dashboard]'" in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(place, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert call(["dashboard", "--dir", str(place), "--port", str(taken.getsockname()[1])]) == 4
    said = capsys.readouterr().err
    assert "is in use" in said and "--port 0" in said


def test_an_address_of_another_machine_is_refused(place, capsys):
    assert call(["dashboard", "--dir", str(place), "--host", "192.0.2.1", "--port", "0"]) == 4
    said = capsys.readouterr().err
    assert "--host 192.0.2.1: the token travels unencrypted" in said and "--host 127.0.0.1 is this machine" in said


# The token.


@contextmanager
def owner(server) -> Iterator[httpx.Client]:
    """Yield a browser that has opened the printed address: it has the cookie."""
    with httpx.Client(base_url=server.url, **PLAIN) as browser:
        assert browser.get(server.printed).status_code == 200
        yield browser


@pytest.mark.host
@each_row("path", ["/", "/series", "/runs/last", "/runs/last/log", "/compare", "/nothing", "/now"])
@each_row(
    "headers",
    [
        {},
        {"authorization": "Bearer " + "0" * 48},
        {"authorization": "Bearer"},
        {"authorization": "Basic {token}"},
        {"cookie": "madlite-dashboard-1={token}; madlite-dashboard-{port}="},
        {"cookie": "madlite-dashboard-{port}=\xff"},
    ],
)
def test_without_the_token_nothing_is_told(server, path, headers):
    words = {"token": server.headers["authorization"].split()[1], "port": server.port}
    shown = {name: text.format(**words).encode("latin-1") for name, text in headers.items()}
    for address in (path, f"{path}?token=", f"{path}?token=0&token=%FF"):
        answer = got(server.url + address, headers=shown)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers
        assert "address that madlite dashboard printed" in answer.text and "Authorization: Bearer" in answer.text
        assert "llama" not in answer.text and "/tmp" not in answer.text
        assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.host
def test_the_printed_address_sets_a_cookie_and_leads_to_the_address_without_the_token(server):
    answer = got(server.printed + "&status=failure&q=a%22b")
    token = server.headers["authorization"].split()[1]
    assert answer.headers["set-cookie"] == (
        f"madlite-dashboard-{server.port}={token}; HttpOnly; Path=/; SameSite=strict"
    )
    assert 'content="0; url=/?status=failure&amp;q=a%22b"' in answer.text and token not in answer.text
    cookie = {"cookie": f"other=1; madlite-dashboard-{server.port}={token}"}
    for path in ("/", "/runs/last"):
        assert got(server.url + path, headers=cookie).status_code == 200
    stale = got(server.url + "/runs/last?token=old", headers=cookie)
    assert "url=/runs/last" in stale.text and "set-cookie" not in stale.headers


@pytest.mark.host
def test_the_way_without_the_token_stays_on_this_host(server):
    query = server.printed.partition("?")[2]
    for path in ("//evil.example/", "/%2fevil.example/", "/%5cevil.example/", "/\\evil.example"):
        way = re.search(r'url=([^"]*)"', got(f"{server.url}{path}?{query}").text)[1]
        assert re.match(r"/(?![/\\])", way), way


@pytest.mark.host
@each_row("scheme", ["Bearer", "bearer"])
def test_a_script_shows_the_token_in_a_header(server, scheme):
    token = server.headers["authorization"].split()[1]
    answer = got(f"{server.url}/", headers={"authorization": f"{scheme} {token}"})
    assert answer.text.count("<tr data-run=") == 6 and "set-cookie" not in answer.headers
    # a proxy may have put its own before it
    both = [("authorization", "Basic eDp5"), ("authorization", f"{scheme} {token}")]
    assert got(f"{server.url}/", headers=both).status_code == 200


@pytest.mark.host
def test_two_dashboards_of_one_host_have_a_cookie_each(server, place):
    with dashboard(place) as other, owner(server) as browser:
        assert browser.get(f"{other.url}/").status_code == 403
        assert browser.get(other.printed).status_code == 200
        for one in (server, other):
            assert browser.get(f"{one.url}/").status_code == 200


@pytest.mark.host
def test_with_no_token_everybody_is_let_in(place):
    with dashboard(place, "--no-token") as server:
        assert server.printed == f"{server.url}/" and got(server.printed).status_code == 200
        assert "url=/?q=a" in got(f"{server.url}/?token=old&q=a").text, "an address of another start"
        assert "warning" not in server.said


def test_with_no_token_another_address_is_warned_of(place, capsys):
    assert call(["dashboard", "--dir", str(place), "--no-token", "--host", "192.0.2.1", "--port", "0"]) == 4
    assert "--host 192.0.2.1: everybody who reaches this machine can read the runs" in capsys.readouterr().err


# Pages.


@pytest.mark.host
def test_the_list_of_runs(get, place):
    page = get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert page.text.count("<tr data-run=") == 6
    text = get("/", params={"status": "failure"}).text
    assert text.count("<tr data-run=") == 1 and 'data-run="20260102T050000-llama-00000f"' in text
    assert get("/", params={"q": "pyt", "limit": "2"}).text.count("<tr data-run=") == 2
    ordered = re.findall(
        r'data-run="([^"]+)"', get("/", params={"order": "number", "descending": "true", "limit": "2"}).text
    )
    assert ordered == [RUN.format(n=3), RUN.format(n=2)]


@pytest.mark.host
def test_the_page_that_a_study_has_left_is_named(get, place):
    page = place / "madlite_runs" / "study-s1" / "tune.html"
    page.parent.mkdir()
    page.write_text("<script>alert(1)</script>")
    assert str(page.resolve()) in get("/", params={"of": "s1"}).text
    for other in ("", "s2", "../madlite_runs/study-s1", "x" * 290):
        assert "tune.html" not in get("/", params={"of": other}).text
    shutil.rmtree(page.parent)


@pytest.mark.host
def test_the_newest_numbers_lead(get):
    first = get("/").text.partition("<form")[0]
    assert re.search(r'<a href="/series/\d+">llama</a>', first) and "<b>9,004</b>" in first, "9003.5, rounded"
    assert "against the 3 results before" in first and "<polyline" in first
    assert "9,004" not in get("/", params={"status": "failure"}).text.partition("<form")[0], "of a filtered list"


@pytest.mark.host
def test_every_page_and_link_leads_somewhere(get):
    seen, left = set(), ["/"]
    while left:
        address = left.pop()
        seen.add(address)
        answer = get(address)
        assert answer.status_code == 200, address
        if answer.headers["content-type"].startswith("text/html"):
            found = (html.unescape(one) for one in re.findall(r'(?:href|src)="(/[^"#]*)"', answer.text))
            left += [one for one in found if one not in seen and one not in left]
    assert {"/", "/series", "/compare", f"/runs/{RUN.format(n=3)}"} <= seen
    assert any(one.startswith("/series/") for one in seen) and any("base=" in one for one in seen)


@pytest.mark.host
def test_the_page_of_a_run_has_what_show_has(get, place, capsys):
    assert call(["show", RUN.format(n=3), "--all", "--dir", str(place)]) == 0
    text = html.unescape(re.sub(r"<[^>]*>", " ", get(f"/runs/{RUN.format(n=3)}").text))
    words = re.sub(r"\s+", " ", text)
    for line in capsys.readouterr().out.splitlines()[1:]:
        value = " ".join(line[18:].split())
        assert value in words, line
    assert get("/runs/last").status_code == 200
    before = [get(f"/runs/{name}").text for name in ("last", "last~0", "last~1")]
    assert before[0] == before[1] != before[2] and "20260" in before[2]
    assert get("/runs/last~99999").status_code == 404


def folded(page):
    """Return what of a page is folded, and what is not."""
    closed = "".join(re.findall(r"<details>.*?</details>", page, re.DOTALL))
    return closed, re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)


@pytest.mark.host
def test_the_page_of_a_run_first_has_what_one_looks_for(tmp_path):
    """Notes stand below the title; what passed, and what a default or recipe decided, is folded."""
    checks = (Check(name="loss", status="pass", text="finite"), Check(name="clock", status="warn", text="it stood"))
    told = good("a", findings=("a note",), suspect=("a doubt",), checks=checks)
    keep(tmp_path, RUN.format(n=1), told, card=Card(name="llama", root=tmp_path, source="x"))
    with dashboard(tmp_path) as server:
        page = server.get("/runs/last").text
    head, _, _ = page.partition('<dl class="tiles">')
    assert '<p class="notice">a note</p>' in head and '<p class="notice"><b>suspect</b> a doubt</p>' in head
    closed, seen = folded(page)
    assert "<dt>loss</dt><dd>pass  finite</dd>" in closed and "<dt>loss</dt>" not in seen
    assert "<dt>clock</dt><dd>warn  it stood</dd>" in seen and "1 pass, 0 unknown" in seen
    assert "<dt>precision</dt>" in seen and "<dt>tags</dt>" not in seen and "<dt>timeout_s</dt>" not in seen


@pytest.mark.host
@each_row(("cv", "drift", "kinds"), [(0.002, 0.01, ["good"] * 2), (0.2, -0.06, ["warn"] * 2)])
def test_drift_and_cv_are_coloured(tmp_path, cv, drift, kinds):
    window = replace(WINDOW, cv=cv, drift=drift)
    keep(tmp_path, RUN.format(n=1), good("a", window=window), card=Card(name="llama", root=tmp_path, source="x"))
    with dashboard(tmp_path) as server:
        page = server.get("/runs/last").text
    assert re.findall(r'<div class="tile (\w+)"><dt>(?:CV|drift)', page) == kinds
    assert ("not steady" in page) == (kinds[0] == "warn"), "not by colour alone"


@pytest.mark.host
def test_a_log_is_read_whole_and_as_text(get):
    page = get("/runs/20260102T040000-hostile-00000a").text
    addresses = re.findall(r'href="(/runs/[^"]*/log)"( download="[^"]*\.log")?', page)
    assert [bool(name) for _, name in addresses] == [False, True]
    answer = get(addresses[0][0])
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert HOSTILE in answer.text and "red" in answer.text and "\x1b" not in answer.text and TOKEN not in answer.text
    assert get("/runs/none/log").status_code == 404


@pytest.mark.host
def test_two_sides_are_compared(get, place):
    page = get("/compare", params={"base": RUN.format(n=0), "new": RUN.format(n=1)})
    assert page.status_code == 200 and "insufficient data" in page.text
    assert get("/compare", params={"base": "last~2", "new": RUN.format(n=3)}).status_code == 200
    assert "is no file, run, study or baseline" in html.unescape(
        get("/compare", params={"base": "none", "new": "last"}).text
    )


@pytest.mark.host
@each_row("name", ["/etc/passwd", "../other.csv", "/tmp/x.csv", ".hidden.csv", "sub/perf.csv"])
def test_no_other_file_of_the_machine_is_read(get, place, name):
    (place / "sub").mkdir(exist_ok=True)
    for path in (place / "sub" / "perf.csv", place / ".hidden.csv", place.parent / "other.csv"):
        path.write_text("model,performance,metric,status\nm,1,x,SUCCESS\n")
    answer = get("/compare", params={"base": name, "new": name})
    assert "no file, run, study or baseline" in html.unescape(answer.text)


@pytest.mark.host
def test_a_results_file_of_the_folder_can_be_a_side(get, place):
    (place / "mine.csv").write_text("model,performance,metric,status\nm,1,x,SUCCESS\nm,2,x,SUCCESS\n")
    page = get("/compare", params={"base": "mine.csv", "new": "mine.csv"}).text
    assert 'role="alert"' not in page and "insufficient data" in page


@pytest.mark.host
def test_a_link_in_the_folder_is_no_results_file(get, place, tmp_path):
    (tmp_path / "secret.csv").write_text("model,performance,metric,status\nsecret,1,x,SUCCESS\n")
    for name, target in (("link.csv", tmp_path / "secret.csv"), ("folder.csv", tmp_path), ("none.csv", "nowhere")):
        (place / name).symlink_to(target)
        answer = get("/compare", params={"base": name, "new": name})
        assert 'role="alert"' in answer.text and "secret,1" not in answer.text
    page = get("/compare", params={"base": "link.csv", "new": "last"}).text
    assert "link.csv cannot be read: it is a link" in html.unescape(page)


@pytest.mark.host
@each_row("number", ["²", "٣", "x", "-1", "1" * 16])
def test_a_series_that_has_no_such_number_is_not_found(get, number):
    assert get(f"/series/{number}").status_code == 404


@pytest.mark.host
def test_pages_of_the_list_are_all_of_it_once(get, place):
    expected = [run.folder.name for run in reversed(list_runs(place / "madlite_runs"))]
    found = []
    for offset in range(0, 8, 2):
        page = get("/", params={"limit": 2, "offset": offset}).text
        assert "of 6</span>" in page
        found += re.findall(r'<tr data-run="([^"]+)"', page)
    assert found == expected


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A dashboard of a folder with a sweep of two keys, its third point a failure, and a run after it."""
    folder = tmp_path_factory.mktemp("swept")
    card = Card(name="llama", root=folder, source="x")
    for n, (a, b) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)]):
        metric = Metric(metric="tokens_per_s", text=f"{10 * n + 1}", status=Status.SUCCESS, value=10.0 * n + 1)
        when = f"2026-01-02T03:{n:02d}:05+00:00"
        told = (
            good("a", when, metrics=(metric,)) if n != 2 else Result(plan_id="f", status=Status.FAILURE, started=when)
        )
        study = Study(id=STUDY, kind="sweep", varied={"a": a, "b": b}, series=n + 1, index=1, count=1)
        keep(folder, RUN.format(n=n), told, card=card, study=study)
    keep(folder, RUN.format(n=9), good("a", "2026-01-02T04:00:05+00:00"), card=card)
    without_place = folder / "madlite_runs" / RUN.format(n=1) / "record.json"
    record = json.loads(without_place.read_text())
    without_place.write_text(json.dumps({**record, "place": None}))
    with dashboard(folder) as started:
        yield started


STUDY = "20260102T030000-abcdef"


@pytest.mark.host
def test_the_runs_of_a_study_are_one_row(swept):
    page = swept.get("/").text
    assert re.findall(r'<tr data-(?:run|study)="([^"]+)"', page) == [RUN.format(n=9), STUDY]
    row = page.partition(f'data-study="{STUDY}"')[2].partition("</tr>")[0]
    assert "<b>1 to 31</b>" in row and "3 SUCCESS" in row and "1 FAILURE" in row and "<summary>4 runs of" in row
    assert re.findall(r'href="/runs/([^"]+)"', row) == [RUN.format(n=n) for n in (3, 2, 1, 0)]
    for query in ({"of": STUDY}, {"order": "number"}):
        assert swept.get("/", params=query).text.count("<tr data-run=") == (4 if "of" in query else 5), "each alone"


@pytest.mark.host
def test_the_title_names_the_folder(get, place):
    for address, title in (("/", "Runs"), ("/series", "Series"), (f"/runs/{RUN.format(n=3)}", "llama")):
        assert f"<title>{title} · {place.name} · madlite</title>" in get(address).text


# What it refuses, and what may not become markup.


@pytest.mark.host
@each_row("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_only_answers_get(server, method):
    answer = httpx.request(method, f"{server.url}/", headers=server.headers, **PLAIN)
    assert answer.status_code == 405 and {*answer.headers["allow"].split(", ")} == {"GET", "HEAD"}


@pytest.mark.host
def test_a_name_that_resolves_to_this_machine_is_refused(server):
    for path in ("/", "/now", "/static/page.css"):
        answer = got(server.url + path, headers={**server.headers, "host": f"evil.example:{server.port}"})
        assert answer.status_code == 400 and "llama" not in answer.text


@pytest.mark.host
@each_row("path", ["/", "/series", "/compare", "/runs/20260102T040000-hostile-00000a", "/nothing", "/runs/none"])
def test_every_answer_has_the_headers(get, path):
    headers = get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert "server" not in headers


@pytest.mark.host
@each_row(
    "path",
    [
        "/", "/series", "/runs/20260102T040000-hostile-00000a", "/runs/20260102T050000-llama-00000f",
        "/compare?base=last~1&new=last", f"/compare?base={HOSTILE}&new=<marquee>&where=<i>=1",
        f"/?q={HOSTILE}", f"/?card={HOSTILE}", f"/runs/{HOSTILE}", f"/?limit={HOSTILE}",
    ],
)  # fmt: skip
def test_no_text_becomes_markup_and_no_secret_is_shown(server, path):
    text = server.get(path.replace("#", "%23")).text
    assert "<img src=x" not in text and "alert(1)</script>" not in text and "<marquee" not in text
    assert not re.search(r"<script>|\son\w+=\"|style=\"|javascript:alert\(3\)\"", text), "no inline script or style"
    assert "4900700021" not in text
    assert TOKEN not in text and "\x1b" not in text


@pytest.mark.host
def test_the_log_is_text(get):
    page = get("/runs/20260102T040000-hostile-00000a").text
    text = html.unescape(re.search(r'<pre class="log card"[^>]*>(.*?)</pre>', page, re.DOTALL)[1])
    assert HOSTILE in text and "red" in text and "\x1b" not in text and TOKEN not in text


@pytest.mark.host
@each_row("name", ["..", "%2e%2e", "..%2f..%2fetc", "index.sqlite3", "%00", "a%0ab", "\u202e"])
def test_names_that_lead_elsewhere_are_nothing(get, name):
    for path in (f"/runs/{name}", f"/static/{name}"):
        assert get(path).status_code in (200, 404) and "root:" not in get(path).text


# What goes on, and its end.


CARD = {"name": "m", "scripts": "run.sh", "n_gpus": "-1", "tags": ["t"], "args": ""}
SCRIPT = """
echo "token=TOKEN"
while [ ! -e GO ]; do echo "waiting <b>"; sleep 0.1; done 2>/dev/null
echo 'performance: 5 x'
""".replace("TOKEN", TOKEN)


@pytest.mark.host
def test_a_run_is_followed_live(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT.replace("GO", str(tmp_path / "go")))
    (tmp_path / "models.json").write_text(json.dumps([CARD]))
    (tmp_path / "madlite_runs").mkdir()
    with dashboard(tmp_path) as server:
        words = ("run", "--tags", "t", "--runtime", "host")
        run = commands.start(words, tmp_path, os.environ, stdout=subprocess.DEVNULL)
        wait_until(lambda: list(tmp_path.glob("madlite_runs/*/progress.json")))
        folder = next(tmp_path.glob("madlite_runs/*/progress.json")).parent
        seen, logs = [], []
        while not seen or seen[-1]["state"] == "RUNNING":
            now = server.get("/now", params={"run": folder.name}).json()
            seen += now["runs"]
            if now["log"]:
                logs.append(now["log"])
            if "waiting" in (now["log"] or ""):
                (tmp_path / "go").touch()
            time.sleep(0.2)
        assert run.wait() == 0
        assert server.get("/now", params={"run": "../x"}).json()["log"] is None
        assert (seen[0]["id"], seen[0]["state"]) == (folder.name, "RUNNING")
        assert (seen[-1]["state"], seen[-1]["number"]) == ("SUCCESS", "5 x")
        assert logs and "waiting <b>" in logs[-1] and TOKEN not in "".join(logs)
        wait_until(lambda: 'class="badge good">SUCCESS' in server.get("/").text)


def told_of(live: Live) -> dict[str, str]:
    """Return what is told by the next look: the states of runs."""
    return {run.id: run.state for run in live.now("")["runs"]}


def test_of_runs_that_ended_the_last_ones_are_told_of(tmp_path, monkeypatch):
    """A dashboard is open for weeks, and each tab asks every two seconds."""
    monkeypatch.setattr("madlite.reports.dashboard.live._LOOK_S", 0.0)  # it looks each time that it is asked
    monkeypatch.setattr("madlite.reports.dashboard.live._LEAST_REST", 0)
    plan, runs = make_plan(tmp_path), tmp_path / "madlite_runs"
    with RunIndex(runs) as index:
        live = Live(index)
        for part in range(3):
            names = [RUN.format(n=30 * part + n) for n in range(30)]
            folders = [RunFolder.create(replace(plan, folder=runs / name), []) for name in names]
            index.refresh()
            assert set(told_of(live).values()) >= {"RUNNING"}
            for folder in folders:
                folder.close()
            ended = told_of(live)
            assert {ended[name] for name in names} == {"CUT OFF"}
        index.refresh()
        told_of(live)
        assert len(told_of(live)) == 50


@pytest.mark.host
@each_row(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_it_ends_at_once_with_tabs_open(place, number, code):
    with dashboard(place) as server, owner(server) as browser:
        assert browser.get("/now").json()["runs"] == []
        assert server.end(number) == code
        assert "Traceback" not in server.said


@pytest.mark.host
def test_it_writes_nothing_and_takes_no_lock(place):
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    with dashboard(place) as server:
        for path in ("/", "/series", "/runs/last"):
            assert server.get(path).status_code == 200
        locks = {os.stat(path).st_ino for path in place.rglob(LOCK)}
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        # of its own alone: a file of another disk can have the number of one of these; who waits has -> first
        own = [words for words in lines if words[1] == "FLOCK" and words[4] == str(server.process.pid)]
        held = {int(words[5].split(":")[2]) for words in own}
        assert not locks & held
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, server.process.pid) == min(nice + 10, 19)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()} == before
