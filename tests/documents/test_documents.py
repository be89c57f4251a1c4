"""Every command of AMD's documents on every GPU: planned, run with stub programs, and compared with its text.

Each difference is named in `tests/data/documents` with why it is meant; one without a name fails, and so does a name
whose difference is gone.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import madlite_plugins
from madlite.backends.recipe_book import read_book
from madlite.cli import plan as plan_commands
from madlite.cli.main import call
from madlite.cli.planning import planner
from madlite.model import RunPlan
from madlite.plan.submission import PlannedRun
from tests.documents.compare import container_differences, differences, unexpected
from tests.documents.stubs import TOKEN, Image
from tests.documents.table import DEVICES, Row, Step, documents, rows, shared, steps
from tests.rows import each_row

pytestmark = pytest.mark.host
BOOKS = sorted(
    book
    for pattern in ("recipes", "recipes.toml")
    for book in Path(madlite_plugins.__file__).parent.glob(f"*/{pattern}")
)


@pytest.fixture(autouse=True)
def nothing_of_the_user(tmp_path, monkeypatch):
    for name in ("MODEL_DIR", "HF_TOKEN", "HF_HOME", "HF_HUB_OFFLINE", "NNODES", "NODE_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MAD_SECRETS_HFTOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)


def planned(row: Row, folder: Path, monkeypatch, capsys) -> tuple[list[PlannedRun], str]:
    """Plan a row in an empty folder, on a machine of eight of its GPUs that is not here."""
    (folder / "checkout").mkdir()
    monkeypatch.chdir(folder / "checkout")
    made: list[PlannedRun] = []
    monkeypatch.setattr(
        plan_commands, "planner", lambda *given: lambda options: made.extend(planner(*given)(options)) or made
    )
    code = call(["explain", *shlex.split(row.command.madlite), "--machine", f"8x{row.device}", "--all"])
    told = capsys.readouterr()
    assert code == (0 if made else 4), told.err
    return made, told.err + told.out


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.document)
@pytest.mark.parametrize("device", DEVICES)
def test_a_document_s_commands_run_as_it_says(document, device, tmp_path, monkeypatch, capsys):
    of_both = [row for row in rows() if (row.document.document, row.device) == (document.document, device)]
    check = each_row("row", of_both, ids=[row.name for row in of_both])(runs_as_it_says)
    check(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)


def runs_as_it_says(row, tmp_path, monkeypatch, capsys):
    plans, told = planned(row, tmp_path, monkeypatch, capsys)
    if row.refused:
        assert row.refused in told, told or plans
        assert not plans or "would be refused" in told
        return
    (one,) = plans or pytest.fail(told)
    plan, said = one.plan, steps(row.command.starts or row.command.text)
    assert "would be refused" not in told or said[-1].words[0] == "wget", told
    assert plan.image and plan.image.ref == row.document.image
    assert row.device in plan.machine.product
    assert {key: _value(plan, key) for key in row.command.means} == row.command.means
    found = _found(said, one, tmp_path / "image")
    wrong = unexpected(found, row.expected)
    assert not wrong, "\n".join(wrong)
    assert [name for name in added(found) if not shown(name, told)] == [], "explain has no word of it"


REFUSED = [(book.parent.name, one) for book in BOOKS for one in read_book(book).refused]


def added(found: list[str]) -> list[str]:
    """Return the variables that a run has beyond its document, without the shell's functions."""
    names = [one[2:].partition("=")[0] for one in found if one.startswith("+ ") and "=" in one]
    return [name for name in names if name.isidentifier()]


def shown(name: str, explained: str) -> bool:
    """Say whether `explain` has a variable: of the run, of its script, or among those of a script of the image.

    The user's own secret is no addition, and the folder of a script's logs is one that goes with the run.
    """
    words = (f"env.{name} ", f"export.{name} ", f"{name}=")
    return any(word in explained for word in words) or name in ("MAD_SECRETS_HFTOKEN", "LOG_DIR")


def _found(said: list[Step], one: PlannedRun, folder: Path) -> list[str]:
    """Return the differences of a container, of a plan's downloads, of a program of MAD's, or of a script that runs."""
    program, *words = said[-1].words
    if program == "docker":
        return container_differences(said[-1].words, one.plan)
    if program == "wget":
        fetched = {asset.ref for backend in one.backends for asset in backend.assets(one.plan)}
        return [
            f"not fetched: {step.words[1]}" for step in said if step.words[0] == "wget" and step.words[1] not in fetched
        ]
    if program == "madengine":
        code = call([*words, "--dry-run", "--machine", f"{len(one.plan.machine.gpus)}x{one.plan.machine.device}"])
        return [] if code == 0 else [f"exit code {code}"]
    folder.mkdir()
    return differences(said, Image(folder).calls(one.plan, one.files))


def _value(plan: RunPlan, key: str) -> object:
    """Return a value of a plan's variant, of its settings, or its own."""
    if key in plan.variant.__struct_fields__:
        return getattr(plan.variant, key)
    return plan.settings[key] if key in plan.settings else getattr(plan, key)


def test_each_document_is_there_and_each_named_difference_is_used():
    names = [one.name for one in shared()]
    used = {name for row in rows() for name in row.names if not row.refused}
    for document in documents():
        assert set(document.devices) <= set(DEVICES)
        names += [one.name for one in document.difference]
    assert len(documents()) == 4 and len(names) == len(set(names)) and set(names) == used


@each_row("refusal", REFUSED, ids=[f"{name} {one.cards[0]} {one.precision}" for name, one in REFUSED])
def test_what_a_document_has_wrong_is_refused_with_its_reason_and_with_a_way_that_there_is(refusal, capsys):
    _, refused = refusal
    asked = ["--precision", refused.precision, *(["--mode", refused.mode] if refused.mode else [])]
    release = ["--image-release", refused.releases[-1]] if refused.releases else []
    (card,) = refused.cards
    assert call(["explain", card, *asked, *release, "--machine", "8xMI300X"]) == 4
    told = capsys.readouterr().err
    assert refused.why in told and f"hint: {refused.way}\n" in told
    assert call(["explain", card, *asked, *release, "--machine", "8xH100"]) == 4
    assert refused.why not in capsys.readouterr().err, "that is not why"
    for way in refused.way.partition(" (")[0].split(", or "):
        words = way.split()
        tags = [] if "--tags" in words else [card]
        mode = asked[2:] if "--mode" not in words else []
        own = release if "--image-release" not in words else []
        assert call(["explain", *tags, *words, *mode, *own, "--machine", "8xMI300X"]) == 0, way
