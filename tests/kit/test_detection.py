"""No built-in backend claims a log of another framework more surely than that framework's own backend does."""

from __future__ import annotations

from madlite.backends.recipe_book import loaded_backend
from madlite.measure.parse_log import head_lines
from tests.kit.built_in import FORMATS, LOGS, NAMES, SURER, owner, plugins
from tests.rows import each_row

LINES = 500  # of a log, as many as its owner is searched for in


@each_row("path", sorted(LOGS.iterdir()), ids=lambda path: path.name)
def test_a_log_is_its_owner_s(path):
    head = head_lines([path.read_bytes()])[:LINES]
    names = NAMES if owner(path) in ("", *SURER) else [*NAMES, *FORMATS]  # a log of nobody may be like that of a format
    sure = {name: loaded_backend(plugins().backends()[name][0]).detect(head) for name in names}
    own = sure.pop(owner(path), 1.0)
    assert {name: certainty for name, certainty in sure.items() if certainty and certainty >= own} == {}
