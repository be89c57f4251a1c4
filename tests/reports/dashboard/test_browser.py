"""The dashboard in a browser: lists, filters in the address, charts, live progress; it complains of nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from msgspec.structs import replace

from madlite.store.folder import PROGRESS, Progress, ProgressFile, RunFolder
from tests.browser import browser, prefer, resize, until
from tests.factories import make_plan
from tests.reports.dashboard.dashboards import dashboard
from tests.reports.dashboard.test_server import CARD, HOSTILE, RUN, place
from tests.rows import each_row

__all__ = ["browser", "place"]
pytestmark = [pytest.mark.host, pytest.mark.full]

ROWS = "return [...document.querySelectorAll('#runs tbody tr')].map(e => e.dataset.run)"
LIVE = "return document.getElementById('stream-text')?.textContent === 'live'"
TRAINING = """
while [ ! -e GO ]; do sleep 0.1; done 2>/dev/null
echo 'performance: 5 x'
"""


@pytest.fixture(scope="module")
def server(place):
    with dashboard(place) as started:
        yield started


@pytest.fixture
def opened(browser, server):
    browser.get("about:blank")
    prefer(browser, "light")
    resize(browser, 1300)
    browser.get(server.printed)
    assert until(browser, LIVE)
    yield browser
    assert complaints(browser) == []


def complaints(browser) -> list[dict]:
    """Return what the console has; what a test reads back of a canvas is its own doing."""
    return [line for line in browser.get_log("browser") if "readback" not in line["message"]]


def test_the_printed_address_opens_it_wherever_it_is_clicked(browser, server, tmp_path):
    """A link of another site, of a mail in the browser, say; afterwards the token is in no address."""
    page = tmp_path / "mail.html"
    page.write_text(f'<a href="{server.printed}&amp;status=failure">open</a>')
    browser.get(page.as_uri())
    browser.delete_all_cookies()
    browser.get(server.url)
    assert "open the whole address" in browser.find_element("tag name", "body").text
    browser.get(page.as_uri())
    browser.find_element("link text", "open").click()
    assert until(browser, f"return document.title.startsWith('Runs') && {LIVE.removeprefix('return ')}")
    assert browser.current_url == f"{server.url}/?status=failure"
    assert "token" not in browser.execute_script("return document.referrer + document.cookie")
    assert len(browser.execute_script(ROWS)) == 1
    assert [line for line in complaints(browser) if "403" not in line["message"]] == []


def test_a_choice_is_in_the_address_and_back_leaves_it(opened):
    from selenium.webdriver.support.ui import Select

    assert len(opened.execute_script(ROWS)) == 6
    Select(opened.find_element("name", "status")).select_by_value("failure")
    assert until(opened, "return document.querySelectorAll('#runs tbody tr').length === 1")
    assert parse_qs(urlsplit(opened.current_url).query) == {"status": ["failure"]}, "blank fields are not in it"
    box = opened.find_element("name", "q")
    box.send_keys("llama\n")
    assert until(opened, "return location.search.includes('q=llama')")
    assert "status=failure" in opened.current_url
    opened.back()
    assert until(opened, "return !location.search.includes('q=')")
    opened.find_element("link text", "Clear").click()
    assert until(opened, "return document.querySelectorAll('#runs tbody tr').length === 6")
    assert until(opened, LIVE)


def test_a_head_orders_the_list(opened):
    opened.find_element("link text", "Number").click()
    assert until(opened, "return location.search.includes('order=number')")
    assert opened.execute_script(ROWS)[0] == RUN.format(n=3)
    assert opened.execute_script("return document.querySelector('th[aria-sort]').ariaSort") == "descending"
    opened.find_element("link text", "Number").click()
    assert until(opened, "return location.search.includes('descending=false')")
    assert opened.execute_script(ROWS)[:2] == ["20260102T040000-hostile-00000a", RUN.format(n=0)]


def test_two_runs_are_picked_from_the_list_with_the_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    first, second = (f"input[aria-label='{side}: {RUN.format(n=n)}']" for side, n in (("base", 0), ("new", 3)))
    for chosen in (first, second):
        opened.find_element("css selector", chosen).send_keys(Keys.SPACE)
    opened.find_element("css selector", "#pick button").send_keys(Keys.ENTER)
    assert until(opened, "return document.querySelectorAll('#comparison tbody tr').length === 1")
    assert parse_qs(urlsplit(opened.current_url).query) == {"base": [RUN.format(n=0)], "new": [RUN.format(n=3)]}


def test_on_a_phone_status_and_number_of_a_run_are_in_its_row(opened, server):
    resize(opened, 390, 844)
    opened.get(server.url)
    shown = """const row = document.querySelector(`[data-run="${arguments[0]}"]`);
        return [...row.querySelectorAll('.badge, .number b')]
            .map(e => e.getBoundingClientRect().right <= 390 && e.textContent)"""
    assert opened.execute_script(shown, RUN.format(n=3)) == ["SUCCESS", "9003.5"]
    lead = "return document.querySelector('.leading .figure b').getBoundingClientRect().bottom < 844"
    assert opened.execute_script(lead), "the newest number is on the first screen"


def test_the_page_of_a_run_draws_its_steps(opened, server):
    opened.get(f"{server.url}/runs/{RUN.format(n=3)}")
    assert until(opened, "return document.querySelectorAll('.chart canvas').length === 2")
    assert "9,004" in opened.find_element("css selector", ".tiles").text, "9003.5, rounded"
    opened.find_element("link text", "Compare with the run before").click()
    assert until(opened, "return document.querySelectorAll('#comparison tbody tr').length === 1")


ASLEEP = """
const [fetched, timer, clock] = [fetch, setTimeout, performance.now.bind(performance)];
let asleep = 0;
window.waits = [];
window.fetch = (...words) => { asleep += 3.6e6; return fetched(...words); };
window.setTimeout = (call, wait) => { window.waits.push(wait); return timer(call, wait); };
performance.now = () => clock() + asleep;
"""


def test_a_page_that_slept_while_it_asked_asks_again_within_a_minute(opened):
    """A laptop that was shut for an hour, say."""
    opened.execute_script(ASLEEP)
    assert until(opened, "return window.waits.some(wait => wait >= 2000)")
    assert max(opened.execute_script("return window.waits")) <= 60_000


def test_a_series_and_its_trend(opened, server):
    opened.find_element("link text", "Series").click()
    assert until(opened, "return document.querySelectorAll('#series tbody tr').length === 2")
    opened.find_element("link text", "llama").click()
    assert until(opened, "return document.querySelectorAll('[data-trend] canvas').length === 1")


@each_row("page", ["/", "/runs/20260102T040000-hostile-00000a", "/series", "/compare?base=last~1&new=last"])
def test_hostile_texts_are_texts(opened, server, page):
    opened.get(server.url + page)
    assert until(opened, "return document.readyState === 'complete'")
    assert HOSTILE in opened.execute_script("return document.body.textContent")
    assert opened.execute_script("return document.querySelectorAll('img').length") == 0
    assert opened.execute_script("return [...document.scripts].every(e => e.src || e.type === 'application/json')")


@each_row("width", [400, 1300])
@each_row("page", ["/", f"/runs/{RUN.format(n=3)}", "/series", f"/compare?base={RUN.format(n=0)}&new=last"])
def test_nothing_is_wider_than_the_screen_and_everything_has_a_name(opened, server, page, width):
    resize(opened, width)
    opened.get(server.url + page)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    nameless = "return [...document.querySelectorAll('button, select, input:not([type=hidden]), a')]"
    assert opened.execute_script(f"{nameless}.filter(e => !e.labels?.length && !e.textContent.trim()).length") == 0


def test_what_a_run_does_now_is_shown(browser, tmp_path):
    """It prepares before it is running, and its phase is named where that is more than its state."""
    plan = replace(make_plan(tmp_path), folder=tmp_path / "madlite_runs" / RUN.format(n=1))
    folder = RunFolder.create(plan, [], ())
    with dashboard(tmp_path) as server:
        browser.get(server.printed)
        for state, doing in (("preparing", ""), ("preparing", "pulling the image"), ("running", "running")):
            (plan.folder / PROGRESS).write_bytes(msgspec.json.encode(Progress(state=state, doing=doing)))
            shown = f"{plan.card.name}{state}{doing if doing != state else ''}"
            assert until(browser, f"return document.querySelector('.run-live h3')?.textContent === '{shown}'")
        browser.get("about:blank")
    folder.close()


def test_the_steps_of_a_run_that_goes_on_are_drawn_as_they_come(browser, tmp_path):
    plan = replace(make_plan(tmp_path), folder=tmp_path / "madlite_runs" / RUN.format(n=1))
    folder = RunFolder.create(plan, [], ())
    with dashboard(tmp_path) as server:
        browser.get(server.printed)
        browser.get(f"{server.url}/runs/last")
        for step in (1, 5, 20):
            points = tuple((n, 100.0 + n, 3 / n) for n in (1, 5, 20) if n <= step)
            progress = ProgressFile(state="running", step=step, unit="tokens/s/GPU", points=points)
            (plan.folder / PROGRESS).write_bytes(msgspec.json.encode(progress))
            drawn = "document.querySelectorAll('svg.curve')"
            assert until(
                browser, f"return {drawn}[0]?.getAttribute('aria-label').includes('to {step}, last {100 + step}')"
            )
        points = browser.execute_script(f"return [...{drawn}].map(e => e.firstChild.getAttribute('points'))")
        assert points[0] == "0.0,18.0 21.1,14.6 100.0,2.0" and points[1].startswith("0.0,2.0"), "by the steps' numbers"
        assert complaints(browser) == []
        browser.get("about:blank")
    folder.close()


def test_a_run_that_begins_is_shown_and_followed_to_its_end(browser, tmp_path):
    (tmp_path / "run.sh").write_text(TRAINING.replace("GO", str(tmp_path / "go")))
    (tmp_path / "models.json").write_text(json.dumps([{**CARD, "name": "<i>m</i>"}]))
    (tmp_path / "madlite_runs").mkdir()
    with dashboard(tmp_path) as server:
        browser.get(server.printed)
        assert until(browser, LIVE)
        assert "no runs here yet" in browser.find_element("id", "main").text
        command = [sys.executable, "-m", "madlite", "run", "--tags", "t", "--runtime", "host"]
        run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
        # it prepares first, which the page may show or miss; the workload runs until it is let go
        shown = "document.querySelector('#live:not([hidden]) .run-live h3')?.textContent"
        assert until(browser, f"return {shown} === '<i>m</i>running'")
        assert until(browser, "return document.querySelector('#runs .badge')?.textContent === 'RUNNING'")
        (tmp_path / "go").touch()
        assert run.wait(60) == 0
        assert until(browser, "return document.querySelector('#live .badge')?.textContent === 'success'")
        assert until(browser, "return document.querySelector('#runs .badge')?.textContent === 'SUCCESS'")
        assert "5 x" in browser.find_element("id", "live").text
        assert complaints(browser) == []
        browser.get("about:blank")
