"""The list of --batch-manifest."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.plan.images import BatchEntry, read_batch
from tests.rows import each_row


def test_entries_and_what_they_leave_out(tmp_path):
    file = tmp_path / "b.json"
    file.write_text('[{"model_name": "a", "build_new": true, "registry": "r"}, {"model_name": "b", "note": 1}]')
    assert read_batch(file) == (
        BatchEntry(model_name="a", build_new=True, registry="r"),
        BatchEntry(model_name="b", build_new=False, registry_image="", registry=""),
    )


@each_row("text", ["[]", "{}", '[{"build_new": true}]', '[{"model_name": "a", "build_new": "yes"}]', "["])
def test_what_is_no_such_list_is_one_sentence(tmp_path, text):
    file = tmp_path / "b.json"
    file.write_text(text)
    with pytest.raises(UsageProblem, match="batch manifest"):
        read_batch(file)
    with pytest.raises(UsageProblem, match="cannot be read"):
        read_batch(tmp_path / "none.json")
