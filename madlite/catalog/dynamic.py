"""scripts/<folder>/get_models_json.py → cards: runs the code that MAD's card authors write.

Contract, as madengine 1.0 and 2.1 have it: `list_models()` returns CustomModel objects; names get the folder's prefix
at once; `update_model()` runs only when its model is selected, and the fields it leaves are the card's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from madlite.catalog.cards import make_card, refuse_duplicates, to_plain
from madlite.catalog.found import Found
from madlite.catalog.surroundings import CustomModel, Surroundings
from madlite.errors import CatalogError
from madlite.model import Card, Problem
from madlite.safe_read import read_named


def read_dynamic(file: Path, where: str, root: Path, scope: str) -> tuple[Found | Problem, ...]:
    """Return the cards of a get_models_json.py, or the one problem that keeps them away.

    `where` names the file in messages, `root` is the checkout and `scope` the sub-folder of its scripts/.
    """
    script = _Script(file, where, root, scope)
    try:
        with script.running():
            models = script.list_models()
            cards = tuple(script.card(model, n) for n, model in enumerate(models))
            refuse_duplicates(cards, where, "list_models()")
            for model, card in zip(models, cards, strict=True):
                model.name = card.name  # update_model() finds it as madengine leaves it
    except CatalogError as error:
        return (Problem(where=where, what=error.message.removeprefix(f"{where}: ")),)
    finish = [cache(partial(script.finish, model, n)) for n, model in enumerate(models)]
    return tuple(Found(card=card, finish=last) for card, last in zip(cards, finish, strict=True))


class _Script:
    """One get_models_json.py, with the surroundings its code runs in now and when a card is selected."""

    def __init__(self, file: Path, where: str, root: Path, scope: str) -> None:
        self._file, self._where, self._root, self._scope = file, where, root, scope
        self._surroundings = Surroundings(file.parent, root)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the surroundings; whatever the file's code raises becomes a CatalogError that names the line."""
        try:
            with self._surroundings.entered():
                yield
        except (CatalogError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the card author's code: anything can come out of it
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise CatalogError(f"{self._where}: {_line_of(error, str(self._file))}{what}") from error

    def list_models(self) -> list[CustomModel]:
        """Execute the file and return what it lists."""
        module = ModuleType("get_models_json")
        module.__file__ = str(self._file)
        self._surroundings.add(module)  # dataclasses look their module up while they are made
        exec(compile(read_named(self._file), str(self._file), "exec"), module.__dict__)  # noqa: S102 - the contract
        models = list(module.__dict__["list_models"]()) if "list_models" in module.__dict__ else None
        if models is None:
            raise CatalogError(f"{self._where}: it defines no list_models()")
        for n, model in enumerate(models):
            if not isinstance(model, CustomModel):
                kind = type(model).__name__
                raise CatalogError(f"{self._where}: list_models()[{n}] must be a CustomModel, found a {kind}")
        return models

    def card(self, model: CustomModel, n: int) -> Card:
        """Return the model's card as the model stands."""
        entry = to_plain(model.to_dict())
        if isinstance(name := entry.get("name"), str):
            entry["name"] = name.removeprefix(f"{self._scope}/")  # make_card puts it there
        return make_card(entry, self._where, f"list_models()[{n}]", self._root, self._scope)

    def finish(self, model: CustomModel, n: int) -> Card:
        """Return the card of a model that was selected."""
        with self.running():
            model.update_model()
            return self.card(model, n)


def _line_of(error: BaseException, file: str) -> str:
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else None
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""
