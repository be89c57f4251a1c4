from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from madlite.catalog.cards import FoundCard
from madlite.catalog.dynamic import read_dynamic
from madlite.errors import CatalogError
from madlite.model import Problem
from tests.rows import each_row

from .checkout import write_program


def found_in(root: Path, code: str, folder: str = "dyn") -> list[FoundCard]:
    items = read_dynamic(
        write_program(root, folder, code), f"scripts/{folder}/get_models_json.py", root.absolute(), folder
    )
    assert all(isinstance(item, FoundCard) for item in items), items
    return [item for item in items if isinstance(item, FoundCard)]


def problem_of(root: Path, code: str) -> Problem:
    (problem,) = read_dynamic(write_program(root, "dyn", code), "scripts/dyn/get_models_json.py", root, "dyn")
    assert isinstance(problem, Problem)
    assert problem.where == "scripts/dyn/get_models_json.py"
    return problem


@each_row("module", ["madengine.tools.discover_models", "madengine.utils.discover_models"])
@each_row(
    "lines",
    [
        "from {module} import CustomModel",
        "import {module}\nCustomModel = {module}.CustomModel",
        "import {module} as found\nCustomModel = found.CustomModel",
        "from {parent} import discover_models\nCustomModel = discover_models.CustomModel",
    ],
)
def test_both_import_paths_of_madengine_work_while_the_file_runs_and_only_then(
    tmp_path: Path, module: str, lines: str
) -> None:
    code = lines.format(module=module, parent=module.rpartition(".")[0])
    (model,) = found_in(tmp_path, f"{code}\ndef list_models():\n    return [CustomModel(name='m')]\n")
    assert model.card.name == "dyn/m"
    assert not [name for name in sys.modules if name.partition(".")[0] in ("madengine", "get_models_json")]


def test_a_model_has_madengines_defaults(tmp_path: Path) -> None:
    code = """
        from madengine.utils.discover_models import CustomModel
        def list_models():
            return [CustomModel(name="m")]
    """
    card = found_in(tmp_path, code)[0].complete()
    assert (card.n_gpus, card.timeout_s, card.tags, card.scripts, card.extra) == ("-1", 7200, (), "", {})


def test_an_installed_madengine_is_hidden_while_the_file_runs_and_back_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = {name: ModuleType(name) for name in ("madengine", "madengine.tools", "madengine.core")}
    for name, module in real.items():
        monkeypatch.setitem(sys.modules, name, module)
    code = """
        from madengine.tools.discover_models import CustomModel
        def list_models():
            return [CustomModel(name="m")]
    """
    assert found_in(tmp_path, code)[0].card.name == "dyn/m"
    assert {name: sys.modules[name] for name in real} == real
    assert "madengine.tools.discover_models" not in sys.modules


def test_the_files_own_folder_is_importable_and_two_folders_may_have_modules_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    code = """
        from madengine.utils.discover_models import CustomModel
        from naming import NAME
        def list_models():
            return [CustomModel(name=NAME)]
    """
    for folder in ("a", "b"):
        write_program(tmp_path, folder, code).with_name("naming.py").write_text(f"NAME = 'of_{folder}'")
    path = list(sys.path)
    names = [found_in(tmp_path, code, folder)[0].card.name for folder in ("a", "b")]
    assert names == ["a/of_a", "b/of_b"]
    assert (sys.path, "naming" in sys.modules) == (path, False)
    assert not list(tmp_path.rglob("__pycache__"))


def test_the_working_folder_is_the_checkout_while_the_file_runs(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("m")
    before = Path.cwd()
    code = """
        from madengine.utils.discover_models import CustomModel
        def list_models():
            return [CustomModel(name=open("here.txt").read())]
    """
    assert found_in(tmp_path, code)[0].card.name == "dyn/m"
    assert Path.cwd() == before


LAZY = """
    from __future__ import annotations
    from dataclasses import dataclass, field
    from madengine.utils.discover_models import CustomModel

    @dataclass
    class Lazy(CustomModel):
        additional_docker_run_options: str = ""
        distributed: dict = field(default_factory=dict)

        def update_model(self):
            import naming, os
            with open("updated.txt", "a") as file:
                file.write(self.name + " ")
            self.args += naming.ARGS
            self.n_gpus = 4

    def list_models():
        return (Lazy(name=name, dockerfile="../../docker/mini", scripts="run.sh", tags=["t"], args="--a",
                     additional_docker_run_options="--shm-size=2g", distributed={"nnodes": 2}) for name in "mn")
"""


def test_update_model_runs_once_and_only_when_its_model_is_selected(tmp_path: Path) -> None:
    write_program(tmp_path, "dyn", LAZY).with_name("naming.py").write_text("ARGS = ' --late'")
    first, second = found_in(tmp_path, LAZY)
    assert not (tmp_path / "updated.txt").exists()
    assert (second.card.name, second.card.tags, second.card.args) == ("dyn/n", ("t",), "--a")
    assert second.complete() is second.complete()
    assert (tmp_path / "updated.txt").read_text() == "dyn/n "
    assert (first.card.args, second.complete().args, second.complete().n_gpus) == ("--a", "--a --late", "4")


def test_paths_are_rewritten_once_and_a_subclasss_fields_are_kept(tmp_path: Path) -> None:
    write_program(tmp_path, "dyn", LAZY).with_name("naming.py").write_text("ARGS = ''")
    model = found_in(tmp_path, LAZY)[0]
    for card in (model.card, model.complete(), model.complete()):
        assert (card.name, card.dockerfile, card.scripts) == ("dyn/m", "docker/mini", "scripts/dyn/run.sh")
        assert card.additional_docker_run_options == "--shm-size=2g"
        assert card.extra == {"distributed": {"nnodes": 2}}


def test_what_the_file_prints_does_not_reach_standard_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
        print("while loading")
        from madengine.utils.discover_models import CustomModel
        def list_models():
            return [CustomModel(name="m")]
    """
    found_in(tmp_path, code)
    print("ours", flush=True)
    out, err = capfd.readouterr()
    assert out == "ours\n"
    assert "while loading" in err


@each_row(
    ("code", "what"),
    [
        ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("def list_models():\n    raise KeyError('weights')\n", "line 2: KeyError: 'weights'"),
        ("import sys\nsys.exit('not today')\n", "line 2: SystemExit: not today"),
        ("raise BaseException('stop it')\n", "line 1: BaseException: stop it"),
        ("raise GeneratorExit('stop it')\n", "line 1: GeneratorExit: stop it"),
        ("def list_models(:\n    pass\n", "line 1: SyntaxError: invalid syntax"),
        ("import no_such_module_anywhere\n", "line 1: ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("def list_models():\n    return iter_it()\ndef iter_it():\n    yield 1 / 0\n", "line 4: ZeroDivisionError:"),
        ("models = []\n", "it defines no list_models()"),
        ("def list_models():\n    return None\n", "TypeError: 'NoneType' object is not iterable"),
        ("def list_models():\n    return [{'name': 'm'}]\n", "list_models()[0] must be a CustomModel, found a dict"),
    ],
)
def test_a_file_that_raises_or_lists_nonsense_is_one_problem_with_its_line(
    tmp_path: Path, code: str, what: str
) -> None:
    assert problem_of(tmp_path, code).what.startswith(what)


@each_row(
    ("models", "what"),
    [
        (
            "[CustomModel(name='a'), CustomModel(name='b', n_gpus=[1])]",
            "card 'b' (list_models()[1]): n_gpus must be text",
        ),
        ("[CustomModel(name='a'), CustomModel(name='a')]", "entries 1 and 2 have one name, 'dyn/a'"),
        ("[CustomModel(name=None)]", "list_models()[0] has no name"),
        ("[CustomModel(name='a', tags=[object()])]", "TypeError: "),
    ],
)
def test_a_model_that_is_no_card_is_a_problem_with_its_place(tmp_path: Path, models: str, what: str) -> None:
    code = f"from madengine.utils.discover_models import CustomModel\ndef list_models():\n    return {models}\n"
    assert problem_of(tmp_path, code).what.startswith(what)


def test_surroundings_are_restored_when_the_file_raises(tmp_path: Path) -> None:
    before, path, cwd = dict(sys.modules), list(sys.path), os.getcwd()
    problem_of(tmp_path, "import sys, os\nsys.path.append('/x')\nos.chdir('/')\nraise StopIteration\n")
    assert {name for name in sys.modules if name not in before} == set()
    assert (sys.path, os.getcwd()) == (path, cwd)
    # an interrupt is the users and goes on
    with pytest.raises(KeyboardInterrupt):
        problem_of(tmp_path, "raise KeyboardInterrupt\n")


def test_an_update_model_that_raises_is_told_with_its_line(tmp_path: Path) -> None:
    code = (
        "from madengine.utils.discover_models import CustomModel\n"
        "class Bad(CustomModel):\n"
        "    def update_model(self):\n"
        "        raise OSError('no weights')\n"
        "def list_models():\n"
        "    return [Bad(name='m')]\n"
    )
    (model,) = found_in(tmp_path, code)
    with pytest.raises(CatalogError, match=r"^scripts/dyn/get_models_json\.py: line 4: OSError: no weights$"):
        model.complete()
