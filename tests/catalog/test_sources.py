from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.catalog.cards import Catalog, select, tag_names
from madlite.catalog.sources import load_catalog
from madlite.errors import CatalogError
from madlite.model import Problem, TreeCards
from tests.rows import each_row

from .checkout import MINIMAD, card, write_cards, write_program


def names(catalog: Catalog) -> list[str]:
    return [card.name for card in catalog.cards]


def test_a_checkouts_cards_come_in_file_order_then_folder_order() -> None:
    catalog = load_catalog(MINIMAD, None)
    in_file = [entry["name"] for entry in json.loads((MINIMAD / "models.json").read_text())]
    assert names(catalog) == [*in_file, "dyn/gen1", "dyn/gen2", "team/sub"]
    assert catalog.problems == ()
    assert {card.source for card in catalog.cards} == {
        "models.json",
        "scripts/dyn/get_models_json.py",
        "scripts/team/models.json",
    }


def test_only_direct_sub_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    for folder in ("b", "a", "a/deeper"):
        write_cards(tmp_path / "scripts" / folder / "models.json", card("m"))
    (tmp_path / "scripts" / "models.json").write_text("not looked at")
    assert names(load_catalog(tmp_path, None)) == ["a/m", "b/m"]


def test_without_a_checkout_there_are_the_bundled_cards(tmp_path: Path) -> None:
    bundled = write_cards(tmp_path / "home" / "models.json", card("m"))
    catalog = load_catalog(tmp_path / "empty", bundled)
    assert (names(catalog), catalog.checkout) == (["m"], ())
    assert (catalog.cards[0].root, catalog.cards[0].source) == (tmp_path / "home", "bundled models.json")


def test_a_nearer_card_hides_those_of_its_name_farther_off(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("here"), card("everywhere"))
    bundled = write_cards(tmp_path / "home" / "models.json", card("everywhere"), card("shipped"), card("own"))
    catalog = load_catalog(tmp_path, bundled, [("tiny", tmp_path, [card("shipped"), card("everywhere")])])
    assert [(card.name, card.source) for card in catalog.cards] == [
        ("here", "models.json"),
        ("everywhere", "models.json"),
        ("shipped", "plugin tiny"),
        ("own", "bundled models.json"),
    ]
    assert catalog.problems == ()


def test_two_cards_of_one_name_in_one_layer_leave_the_first_and_a_problem(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("team/m", args="--first"))
    write_cards(tmp_path / "scripts" / "team" / "models.json", card("m"))
    plugins = [("one", tmp_path, [card("p")]), ("two", tmp_path, [card("p")])]
    catalog = load_catalog(tmp_path, None, plugins)
    assert [(card.name, card.source) for card in catalog.cards] == [("team/m", "models.json"), ("p", "plugin one")]
    assert catalog.problems == (
        Problem(
            where="scripts/team/models.json", what="its card 'team/m' is left out: models.json has one of that name"
        ),
        Problem(where="plugin two", what="its card 'p' is left out: plugin one has one of that name"),
    )


def test_a_broken_models_json_or_folder_stops(tmp_path: Path) -> None:
    # a folder with both kinds of file is refused
    write_cards(write_program(tmp_path, "both", "").with_name("models.json"), card("m"))
    with pytest.raises(CatalogError, match=r"^scripts/both holds both models.json and get_models_json.py$"):
        load_catalog(tmp_path, None)
    # a models json that cannot be read stops
    (tmp_path / "models.json").symlink_to("gone.json")
    with pytest.raises(CatalogError, match=r"^models\.json cannot be read: No such file or directory$"):
        load_catalog(tmp_path, None)


@each_row("place", ["models.json", "scripts/team/models.json"])
def test_a_broken_file_of_the_checkout_stops_with_its_name_and_path(tmp_path: Path, place: str) -> None:
    write_cards(tmp_path / "models.json", card("m"))
    write_cards(tmp_path / place, card("m", n_gpus=[8]))
    with pytest.raises(CatalogError) as caught:
        load_catalog(tmp_path, None)
    expected = f'{place}: card \'m\' (entry 1): n_gpus must be text such as "8" or "-1", at most "1000000", found [8]'
    assert caught.value.message == expected
    assert caught.value.hint == f"correct {tmp_path / place}"


def test_a_raising_program_is_reported_and_the_rest_loads(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("m"))
    write_program(tmp_path, "bad", "\nraise SystemExit(2)\n")
    write_cards(tmp_path / "scripts" / "team" / "models.json", card("sub"))
    catalog = load_catalog(tmp_path, None)
    assert names(catalog) == ["m", "team/sub"]
    assert catalog.problems == (Problem(where="scripts/bad/get_models_json.py", what="line 2: SystemExit: 2"),)


def test_the_working_folder_may_be_given_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
        from madengine.utils.discover_models import CustomModel
        def list_models():
            return [CustomModel(name="m", scripts="run.sh")]
    """
    write_program(tmp_path / "mad", "dyn", code)
    (found,) = load_catalog(Path("mad"), None).checkout
    assert found.complete().root == tmp_path / "mad"


def test_a_plugins_cards_may_be_mappings_and_files(tmp_path: Path) -> None:
    write_cards(tmp_path / "plugin" / "cards" / "models.json", card("of_file"))
    given = [card("of_mapping", dockerfile=Path("docker/x"), tags=("a", "b")), Path("cards/models.json")]
    catalog = load_catalog(tmp_path / "empty", None, [("tiny", tmp_path / "plugin", given)])
    mapping, file = catalog.cards
    assert (mapping.name, mapping.root, mapping.dockerfile) == ("of_mapping", tmp_path / "plugin", "docker/x")
    assert mapping.tags == ("a", "b")
    assert (file.name, file.root) == ("of_file", tmp_path / "plugin" / "cards")


def test_a_plugins_broken_cards_are_problems_and_its_others_load(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[")
    given = [{"args": ""}, Path("bad.json"), Path("gone.json"), "models.json", {"name": "m", "x": object()}, card("ok")]
    catalog = load_catalog(tmp_path / "empty", None, [("tiny", tmp_path, given)])  # type: ignore[list-item]
    assert names(catalog) == ["ok"]
    assert {problem.where for problem in catalog.problems} == {"plugin tiny"}
    assert [problem.what for problem in catalog.problems][:4] == [
        "cards[0] has no name; it has args",
        f"line 1, column 2 is not JSON: Input data was truncated (correct {tmp_path / 'bad.json'})",
        f"plugin tiny cannot be read: No such file or directory (look at {tmp_path / 'gone.json'})",
        "cards[3] must be a mapping or a Path, found a str",
    ]
    assert len(catalog.problems) == 5


def test_a_folders_cards_are_of_that_folder_and_what_is_broken_in_it_stops_nothing(tmp_path: Path) -> None:
    problem = Problem(where="tree/b.yaml", what="it is empty")
    circle: dict[str, object] = {"name": "x"}
    circle["recipe"] = circle
    tree = TreeCards(tree=tmp_path / "tree", found=(card("suite/a"), problem, {"name": ""}, circle, card("suite/c")))
    catalog = load_catalog(tmp_path / "empty", None, [("tiny", tmp_path, [tree, problem, card("own")])])
    assert [(one.name, one.scope, one.root, one.source) for one in catalog.cards] == [
        ("suite/a", "suite", tmp_path / "tree", str(tmp_path / "tree")),
        ("suite/c", "suite", tmp_path / "tree", str(tmp_path / "tree")),
        ("own", "", tmp_path, "plugin tiny"),
    ]
    empty, circular = [one for one in catalog.problems if one != problem]
    assert (empty.where, circular.where) == (str(tmp_path / "tree"),) * 2
    assert empty.what.startswith("cards[2]: name must be text") and catalog.problems.count(problem) == 2


def test_the_same_names_in_two_folders_are_one_problem(tmp_path: Path) -> None:
    old, new = (
        TreeCards(tree=tmp_path / name, found=tuple(card(f"suite/{n}", args=name) for n in names))
        for name, names in (("old", "abc"), ("new", "bcd"))
    )
    catalog = load_catalog(tmp_path / "empty", None, [("tiny", tmp_path, [old, new])])
    assert [(one.name, one.args) for one in catalog.cards] == [
        ("suite/a", "old"),
        ("suite/b", "old"),
        ("suite/c", "old"),
        ("suite/d", "new"),
    ]
    what = f"2 of its cards are left out, 'suite/b' first: {tmp_path / 'old'} has some of their names"
    assert catalog.problems == (Problem(where=str(tmp_path / "new"), what=what),)


def test_the_checkouts_card_comes_before_one_of_a_folder(tmp_path: Path) -> None:
    write_cards(tmp_path / "scripts" / "suite" / "models.json", card("a", args="near"))
    tree = TreeCards(tree=tmp_path / "tree", found=(card("suite/a", args="far"), card("suite/b")))
    catalog = load_catalog(tmp_path, None, [("tiny", tmp_path, [tree])])
    assert [(one.name, one.args) for one in catalog.cards] == [("suite/a", "near"), ("suite/b", "")]
    assert catalog.problems == ()


def test_no_card_anywhere_is_an_error_that_tells_what_was_left_out(tmp_path: Path) -> None:
    write_program(tmp_path, "bad", "raise OSError('no weights')\n")
    write_cards(tmp_path / "models.json")
    with pytest.raises(CatalogError) as caught:
        load_catalog(tmp_path, None)
    assert caught.value.message.startswith(f"there is no model card: {tmp_path} has no models.json")
    assert caught.value.message.endswith("scripts/bad/get_models_json.py: line 1: OSError: no weights")


def test_loading_files_of_cards_imports_nothing_slow(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("m", "t"))
    code = """
import sys
import msgspec, pathlib
sys.modules["madlite"] = type(sys)("madlite")  # the rooms alone, without the public names
sys.modules["madlite"].__path__ = [sys.argv[1]]
import madlite.model
before = set(sys.modules)
from madlite.catalog.sources import load_catalog
from madlite.catalog.cards import select
select(load_catalog(pathlib.Path(sys.argv[2]), None), ["t"])
new = set(sys.modules) - before
print(*sorted(new & {"dataclasses", "inspect", "difflib", "importlib.metadata", "json", "madlite.catalog.dynamic"}))
"""
    package = Path(__file__).parents[2] / "madlite"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(package), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ran.stdout == "\n"


PROGRAM = """
    from pathlib import Path
    from madengine.tools.discover_models import CustomModel
    Path(__file__).with_name("ran").touch()
    def list_models():
        return [CustomModel(name="one", tags=["shared", "static"]), CustomModel(name="two", tags=["of_{0}"])]
"""


@each_row(
    ("tags", "ran", "selected"),
    [
        (["static"], "", ["static"]),
        (["static:lr=1"], "", ["static"]),
        (["team/written"], "", ["team/written"]),
        (["a/one"], "a", ["a/one"]),
        (["a/of_a", "static"], "a", ["a/two", "static"]),
        (["a/all"], "a", ["a/one", "a/two"]),
        (["shared"], "ab", ["static", "a/one", "b/one"]),  # madengine takes all that have the tag
        (["of_b"], "ab", ["b/two"]),
        (["two"], "ab", ["a/two", "b/two"]),
        (["all"], "ab", ["static", "a/one", "a/two", "b/one", "b/two", "team/written"]),
    ],
)
def test_the_programs_of_other_folders_run_only_where_they_may_list_what_is_wanted(
    tmp_path: Path, tags: list[str], ran: str, selected: list[str]
) -> None:
    write_cards(tmp_path / "models.json", card("static", "shared"))
    write_cards(tmp_path / "scripts/team/models.json", card("written"))
    for folder in "ab":
        write_program(tmp_path, folder, PROGRAM.replace("{0}", folder))
    catalog = load_catalog(tmp_path, None, wanted=tag_names(tags))
    assert "".join(folder for folder in "ab" if (tmp_path / f"scripts/{folder}/ran").exists()) == ran
    assert [request.card.name for request in select(catalog, tags)] == selected
    assert [request.card.name for request in select(load_catalog(tmp_path, None), tags)] == selected
    if ran == "ab":
        assert catalog.cards == load_catalog(tmp_path, None).cards


def test_a_program_that_is_not_needed_is_no_problem_and_stops_nothing(tmp_path: Path) -> None:
    write_cards(tmp_path / "models.json", card("static"))
    write_program(tmp_path, "a", "raise SystemExit")
    assert load_catalog(tmp_path, None, wanted=["static"]).problems == ()
    assert len(load_catalog(tmp_path, None, wanted=["nobody"]).problems) == 1
