"""No built-in backend claims a log of another framework more surely than that framework's own backend does."""

from __future__ import annotations

from madlite.backends.recipe_book import loaded_backend
from madlite.measure.parse_log import head_lines
from tests.kit.built_in import LOGS, NAMES, logs_of_frameworks, owner, plugins
from tests.rows import each_row

LINES = 500  # of a log, as many as its owner is searched for in


@each_row("path", logs_of_frameworks(whole=False), ids=lambda path: path.relative_to(LOGS).name)
def test_a_log_is_its_owner_s(path):
    head = head_lines([path.read_bytes()])[:LINES]
    sure = {name: loaded_backend(plugins().backends()[name][0]).detect(head) for name in NAMES}
    own = sure.pop(owner(path), 1.0)
    assert {name: certainty for name, certainty in sure.items() if certainty and certainty >= own} == {}
