"""A page of results whose texts were written to do harm: they are shown, and do nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite.model import Card, ImageUsed, Machine, Metric, Reference, Status, Variant
from madlite.model.results import Diagnosis, Provenance
from madlite.reports.compare import compare
from madlite.reports.index import open_index
from madlite.reports.page.build import page_data
from madlite.reports.page.render import escaped, render_markdown, render_page
from madlite.reports.references import Match
from madlite.reports.selectors import Side, collect
from madlite.reports.series import Sample, Series
from madlite.reports.series_key import DIMENSIONS
from madlite.store.folder import STEPS
from tests.browser import browser, until
from tests.cli.stored_runs import good, store
from tests.rows import each_row

__all__ = ["browser"]
EVIL = (
    "</script><script>window.harm=1</script>",
    "<img src=x onerror=window.harm=1>",
    "\"' autofocus onfocus='window.harm=1' x='",
    "{{ 7 * 7 }}{% raw %}",
    "--><!--<script>",
    "</style></title></textarea><svg/onload=window.harm=1>",
    "javascript:window.harm=1",
    "\u202egnp.exe\u2028\x1b[2J\x00",
    "]]>\\u003cscript>",
)
SCRIPTS = 4  # the theme, the data, uPlot, the page's own


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self._open = [], {"script": [], "style": []}, ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in self.texts:
            self.texts[self._open][-1] += data


def page_of(text, folder=None):
    """Return a page all of whose texts are one."""
    sample = Sample(value=1.0, run=text, when=text, place=text, suspect=text, facts={text: "a", "image": text})
    other = replace(sample, value=2.0, facts={text: text, "image": "b"})
    key = tuple(text for _ in DIMENSIONS)
    facts = {text: (text, "b")}
    one = Series(key=key, values=(1.0, 2.0), samples=(sample, other), facts=facts, failed=1, direction="higher")
    base = replace(one, values=(3.0, 4.0, 5.0), facts={text: ("c",)})
    figure = Reference(model=text, device=text, metric=text, value=2.0, source=text, url=text)
    match = Match(reference=figure, differences=(text,))
    found, runs = Side(label="", series=()), ()
    if folder is not None:
        with open_index(folder / "madlite_runs") as index:
            found, runs = collect([], folder, index, {})
    page = page_data(
        (one, *found.series),
        runs,
        compare((base,), (one,), labels=(text, text), notes=(text,)),
        title=text,
        sources=(text,),
        notes=(text,),
    )
    return replace(page, series=tuple(replace(view, references=(match,)) for view in page.series))


def check_harmless(text):
    page = Elements(text)
    assert len(page.texts["script"]) == SCRIPTS and len(page.texts["style"]) == 2
    names = {name for name, _ in page.found}
    assert not names & {"img", "iframe", "object", "embed", "base", "textarea", "audio", "video", "a:script"}
    attributes = [(name, value) for _, attrs in page.found for name, value in attrs.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("style", "src", "srcdoc", "action")]
    links = [value for name, value in attributes if name in ("href", "xlink:href")]
    assert all(re.fullmatch(r"#[a-z]+(-\d+)?|data:,", link) for link in links)
    json.loads(page.texts["script"][1])
    return page


@each_row("text", EVIL)
def test_no_text_becomes_markup_or_code(text):
    check_harmless(render_page(page_of(text)))


@given(st.text(alphabet=st.sampled_from("<>\"'&/!-scriptSCRIPT{}%\\\x00\u2028\u202e]="), max_size=40))
def test_no_mixture_of_such_characters_does(text):
    check_harmless(render_page(page_of(text)))


def test_only_our_scripts_and_styles_may_run():
    page = check_harmless(render_page(page_of(EVIL[0])))
    (policy,) = (attrs["content"] for _, attrs in page.found if attrs.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    theme, _, *others = page.texts["script"]
    assert rules["script-src"].split() == [_hash(text) for text in (theme, *others)]
    assert rules["style-src"].split() == [_hash(text) for text in page.texts["style"]]


def _hash(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_secrets_are_masked(tmp_path):
    token = "hf_" + "aB3dE5gH7jK9" * 3
    page = page_of(f"args --token {token}")
    for text in (render_page(page), render_markdown(page).replace("\\", "")):
        assert token not in text and "***" in text


@each_row("text", [*EVIL, "a|b", "| --- |\n# x", "[x](http://evil)", "![x](y)", "`a`", "@someone #12", "www.evil.com"])
def test_markdown_stays_a_table_without_links_and_markup(text):
    lines = render_markdown(page_of(text)).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    bars = [len(re.sub(r"\\.", "", line).split("|")) for line in tables]
    heads = [n for n, line in enumerate(tables) if line.startswith("| :--")]
    assert len(heads) == 3 and {*bars} == {bars[at] for at in heads}
    bare = re.sub(r"\\.", "", "\n".join(lines))
    assert "<" not in bare and "](" not in bare and "`" not in bare
    assert "://" not in bare and "www" not in bare.lower().replace("ww\u200bw", "") and not re.search(r"[@#]\w", bare)


def test_markdown_keeps_plain_names_as_they_are():
    assert escaped("primus_pyt_train_llama-3.1-8b seq 8192 (v26.1)") == "primus_pyt_train_llama-3.1-8b seq 8192 (v26.1)"


@pytest.mark.host
@pytest.mark.parametrize("text", EVIL)
def test_a_browser_runs_nothing_of_it(browser, tmp_path, text):
    workspace = tmp_path / "w"
    run_id = "20260101T000000-evil-000001"
    plain = text.replace("\x00", "")
    outcome = replace(
        good(run_id, metrics=(Metric(metric=plain, text="1.5", status=Status.SUCCESS, value=1.5),)),
        image=ImageUsed(ref=plain),
        provenance=Provenance(gpu={plain: plain}, host={plain: plain}),
    )
    machine = Machine(device=plain, hostname=plain)
    card = Card(name=plain, root=tmp_path, source="a test")
    store(workspace, run_id, outcome, card=card, machine=machine, variant=Variant(model=plain, precision=plain))
    failed = replace(
        good("x"), status=Status.FAILURE, metrics=(), diagnosis=Diagnosis(cause=plain, line=plain, hint=plain)
    )
    store(workspace, "20260101T000000-evil-000002", failed, card=card, machine=machine)
    line = {"n": 1, "rank": 0, "phase": "train", "values": {plain: 1.0, "loss": 2.0}}
    lines = "".join(json.dumps({**line, "n": n}) + "\n" for n in range(1, 9))
    (workspace / "madlite_runs" / run_id / STEPS).write_text(lines)
    file = Path(tmp_path, "page.html")
    file.write_text(render_page(page_of(text, workspace)), errors="backslashreplace")
    browser.get(f"file://{file}")
    browser.execute_script("document.querySelector('.chart').scrollIntoView({ behavior: 'instant' })")
    assert until(browser, "return document.querySelectorAll('.chart canvas').length > 0")
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.execute_script("return window.harm === undefined && document.scripts.length") == SCRIPTS
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
