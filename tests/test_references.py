"""Published figures as TOML: what is read, and how a mistake is told."""

from __future__ import annotations

import datetime
import re
import types
from pathlib import Path

import pytest

from madlite import UsageProblem, read_references
from madlite.backends.loader import Plugins
from madlite.model import Reference
from madlite.references import KEYS, flaw_of
from tests.rows import each_row

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "references.md").read_text(encoding="utf-8")

ONE = 'model = "m"\ndevice = "MI300X"\nmetric = "tokens_per_s_per_gpu"\nvalue = 9500\nsource = "s"\n'
GOOD = f"[[reference]]\n{ONE}"


@pytest.fixture
def read(tmp_path):
    def reading(text: str | bytes) -> tuple[Reference, ...]:
        file = tmp_path / "own.toml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_references(file)

    return reading


def test_keys_of_the_file_are_those_of_each_reference_without_its_own(read):
    first, second = read(
        'source = "README 1.2"\nseq_len = 8192\ndevice = "MI300X"\ndate = 2026-05-01\nmetric = "TFLOPS_per_gpu"\n'
        '[[reference]]\nmodel = "a"\nvalue = 1.5\n'
        '[[reference]]\nmodel = "b"\nvalue = 2\nseq_len = 4096\ndate = "2025-12"\ncolumns = { compile = "no" }\n'
    )
    assert first == Reference(
        model="a",
        device="MI300X",
        metric="TFLOPS_per_gpu",
        value=1.5,
        source="README 1.2",
        seq_len=8192,
        date=datetime.date(2026, 5, 1).isoformat(),
    )
    assert (second.seq_len, second.date, second.value, second.columns) == (4096, "2025-12", 2.0, {"compile": "no"})


def test_a_file_without_a_reference_has_none(read):
    assert read("") == () and read('source = "s"') == ()


@each_row(
    ("text", "words"),
    [
        (f'{GOOD}modle = "x"', "reference 1: key 'modle' is unknown; did you mean model?"),
        (f"{GOOD}{GOOD}xyzzyxyzzy = 1", "reference 2: key 'xyzzyxyzzy' is unknown"),
        (f'precison = "BF16"\n{GOOD}', "own.toml: key 'precison' is unknown; did you mean precision?"),
        (f"references = []\n{GOOD}", "key 'references' is unknown; did you mean reference?"),
        ("reference = 5", "key 'reference' is no list of tables"),
        ("reference = [5]", "reference 1 is no table"),
        (GOOD.replace('source = "s"', ""), "key 'source' is missing or empty"),
        (GOOD.replace('"m"', '" "'), "key 'model' is missing or empty"),
        (GOOD.replace("value = 9500", ""), "key 'value' is missing or empty"),
        (GOOD.replace("9500", '"9,500"'), "key 'value' is wrong: expected `float`, got `str`"),
        (GOOD.replace("9500", "nan"), "key 'value': nan is no figure above 0"),
        (GOOD.replace("9500", "inf"), "key 'value': inf is no figure above 0"),
        (GOOD.replace("9500", "0"), "key 'value': 0 is no figure above 0"),
        (f"{GOOD}seq_len = 81.5", "key 'seq_len' is wrong"),
        (f"{GOOD}gpus = 0", "key 'gpus': 0 is no count above 0"),
        (f"{GOOD}nodes = -1", "key 'nodes': -1 is no count above 0"),
        (f'{GOOD}date = "May 2026"', "key 'date': 'May 2026' is no YYYY, YYYY-MM or YYYY-MM-DD"),
        (f'{GOOD}date = "2026-13"', "key 'date'"),
        (f'{GOOD}attention = "half"', "key 'attention' is wrong"),
        (f"{GOOD}columns = {{ compile = 1 }}", "expected `str`, got `int`"),
        ("[[reference]\n", "is no TOML"),
        (f"x = {'[' * 5000}", "is no TOML"),
        (b"\xff", "UTF-8"),
    ],
    ids=lambda one: one[-40:] if isinstance(one, str) else "bytes",
)
def test_a_mistake_is_told_with_the_file_and_the_key(read, text, words):
    with pytest.raises(UsageProblem) as told:
        read(text)
    assert words in told.value.message and "own.toml" in told.value.message
    assert "\n" not in told.value.message


def test_a_file_that_is_not_there_or_no_file(tmp_path):
    with pytest.raises(UsageProblem, match="cannot be read"):
        read_references(tmp_path / "none.toml")
    with pytest.raises(UsageProblem, match="cannot be read"):
        read_references(tmp_path)


def test_a_plugins_reference_is_held_to_the_same_rules():
    assert flaw_of(Reference(model="m", device="d", metric="x", value=1.0, source="s")) == ""
    assert "'date'" in flaw_of(Reference(model="m", device="d", metric="x", value=1.0, source="s", date="soon"))


# The pages.


def test_the_examples_of_the_pages_are_read(read):
    (own,) = read(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert (own.model, own.gpus, own.date, own.value) == ("Llama-3.1-8B", 8, "2026-11-01", 25000.0)


def test_the_hook_of_the_page_for_plugins_brings_what_its_file_has(tmp_path, monkeypatch):
    part = (DOCS / "plugins.md").read_text(encoding="utf-8").partition("### `madlite_references()`")[2]
    module = re.search(r"```python\n(.*?)```", part, re.DOTALL)[1]
    (tmp_path / "references.toml").write_text(re.search(r"```toml\n(.*?)```", part, re.DOTALL)[1])
    plugin = types.ModuleType("tiny_backend")
    plugin.__file__ = str(tmp_path / "__init__.py")
    exec(compile(module, plugin.__file__, "exec"), plugin.__dict__)
    plugins = Plugins()
    plugins.register("tiny", plugin, "tiny-backend", "1.2")
    (one,) = plugins.references()["tiny"]
    assert not plugins.problems
    assert (one.model, one.device, one.value, one.condition) == ("tiny", "MI300X", 9500.0, "ROCm 7.1, 8x MI300X 750 W")


def test_the_page_has_every_key_and_every_source_that_comes_with_madlite():
    from madlite_plugins.published import madlite_references

    table = PAGE.partition("| key | |")[2].partition("\n\n")[0]
    named = {name for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(KEYS)
    listed = re.findall(r"^\| ((?:README|torchtitan|madlite)[^|]*?) \|", PAGE, re.MULTILINE)
    sources = {one.source for one in madlite_references()}
    assert all(any(one.startswith(name) for name in listed) for one in sources) and len(listed) == 5
