"""The page in a browser: it draws, filters, sorts and changes its colours, and complains of nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from madlite.cli.main import call
from tests.browser import browser, prefer, resize, until
from tests.reports.page.results import working_folder
from tests.rows import each_row

__all__ = ["browser"]
pytestmark = [pytest.mark.host, pytest.mark.full]

ROWS = """return [...document.querySelectorAll('#results-table tbody tr:not([hidden]) th')]
    .map(e => e.firstChild.textContent)"""
TITLES = """return [...document.querySelectorAll('article.card[data-i]')]
    .filter(e => e.offsetParent).map(e => e.querySelector('h3').textContent)"""
PAINTED = """
const painted = canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean);
const holders = [...document.querySelectorAll('.chart')];
const blank = holders.find(one => !one.querySelector('canvas') || !painted(one.querySelector('canvas')));
blank?.scrollIntoView({ behavior: 'instant', block: 'center' });
return holders.length > 0 && !blank;
"""
NAMELESS = """return [...document.querySelectorAll('button, select, input')]
    .filter(e => !e.labels?.length && !e.textContent.trim()).length"""
HEADLESS = """return [...document.querySelectorAll('section, article')]
    .filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length"""
LEVELS = "return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => Number(e.tagName[1]))"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the address of a page of results."""
    folder = working_folder(tmp_path_factory.mktemp("page"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert call(["report", "html", "--baseline", "image=rocm/pytorch-training:v26.1"]) == 0
    return f"file://{folder}/report.html"


@pytest.fixture
def opened(browser, page):
    browser.get("about:blank")
    prefer(browser, "light")
    resize(browser, 1300)
    browser.get(page)
    yield browser
    # nor was anything fetched, or kept from running by the policy; what is read back here is the test's own doing
    assert [line for line in browser.get_log("browser") if "readback" not in line["message"]] == []


def test_every_chart_is_drawn(opened):
    # 3 series of runs and one of perf.csv; 3 panels with speed, loss and memory
    assert opened.execute_script("return document.querySelectorAll('.chart').length") == 4 + 3 * 3
    assert until(opened, PAINTED)


def test_an_axis_that_does_not_begin_at_zero_says_so(opened):
    assert until(opened, PAINTED)
    notes = opened.execute_script("return [...document.querySelectorAll('#trends .axis-note')].map(e => e.textContent)")
    assert len(notes) == 4 and all(note.startswith("axis begins at ") and note.endswith(", not 0") for note in notes)


def test_a_filter_chooses_and_stays_in_the_address(opened, page):
    every = opened.execute_script(ROWS)
    assert len(every) == 5
    opened.execute_script(
        "const f = document.getElementById('filters').elements; f.model.value = 'flux';"
        "f.model.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert opened.execute_script(ROWS) == ["flux"]
    assert opened.execute_script("return document.getElementById('shown').textContent") == "1 of 5 series"
    address = opened.current_url
    assert address.endswith("#model=flux")
    assert {title.split()[0] for title in opened.execute_script(TITLES)} == {"flux"}
    opened.get("about:blank")
    opened.get(address)
    assert opened.execute_script(ROWS) == ["flux"]
    opened.find_element("id", "reset").click()
    assert until(opened, ROWS + ".length === 5")
    assert "#" not in opened.current_url


@each_row(
    "name, value, rows",
    [
        ("q", "LLAMA fp8", ["llama-3.1-70b"]),
        ("status", "failure", ["sdxl", "mixtral-8x7b"]),
        ("device", "gfx942", ["sdxl"]),
    ],
)
def test_a_link_has_a_filter(browser, opened, page, name, value, rows):
    opened.get("about:blank")
    opened.get(f"{page}#{name}={value.replace(' ', '+')}")
    assert opened.execute_script(ROWS) == rows


def test_a_table_is_sorted_by_its_heads_with_the_keyboard(opened):
    from selenium.webdriver.common.keys import Keys

    head = opened.find_element("xpath", "//table[@id='results-table']//th[button[text()='Median']]")
    head.find_element("tag name", "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    assert opened.execute_script(ROWS) == ["flux", "sdxl", "llama-3.1-70b", "llama-3.1-8b", "mixtral-8x7b"]
    head.find_element("tag name", "button").send_keys(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "descending"
    assert opened.execute_script(ROWS) == ["llama-3.1-8b", "llama-3.1-70b", "sdxl", "flux", "mixtral-8x7b"]


BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


def test_colours_follow_the_system_until_they_are_chosen(opened):
    light = opened.execute_script(BACKGROUND)
    prefer(opened, "dark")
    assert until(opened, f"return (() => {{{BACKGROUND}}})() !== '{light}'")
    opened.find_element("id", "theme").click()
    assert opened.execute_script(BACKGROUND) == light
    opened.refresh()
    assert opened.execute_script(BACKGROUND) == light
    opened.execute_script("localStorage.clear()")


@each_row("width", [400, 700, 1300])
def test_the_page_never_scrolls_sideways(opened, width):
    resize(opened, width)
    opened.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert until(opened, PAINTED)
    assert opened.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_values_of_a_chart_are_a_table_too(opened):
    from selenium.webdriver.common.keys import Keys

    details = opened.find_element("css selector", "details.values")
    details.find_element("tag name", "summary").send_keys(Keys.ENTER)
    assert until(opened, "return document.querySelectorAll('details.values[open] tbody tr').length") == 20
    assert "suspect" in details.text and "2026-09-01 06:00" in details.text


def test_a_section_is_reached_and_the_filter_stays(opened, page):
    opened.get("about:blank")
    opened.get(f"{page}#model=flux")
    opened.find_element("link text", "Differences").click()
    assert opened.current_url.endswith("#model=flux")
    assert opened.execute_script("return document.activeElement.id") == "differences"


def test_every_control_has_a_name_and_every_section_a_heading(opened):
    assert opened.execute_script(NAMELESS) == opened.execute_script(HEADLESS) == 0
    assert opened.execute_script("return [...document.querySelectorAll('table')].filter(e => !e.caption).length") == 0
    levels = opened.execute_script(LEVELS)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
