"""The kernel's own count of processes that it ended for want of memory."""

from __future__ import annotations

from madlite.machine.host_facts import count_oom_kills
from tests.rows import each_row


@each_row(
    ("text", "count"),
    [("nr_free 5\noom_kill 17\nx 1\n", 17), ("oom_kill 0\n", 0), ("oom_kill_x 3\n", None), ("oom_kill many\n", None)],
)
def test_the_count(tmp_path, text, count):
    (tmp_path / "vmstat").write_text(text)
    assert count_oom_kills(tmp_path / "vmstat") == count


def test_a_kernel_that_does_not_tell(tmp_path):
    assert count_oom_kills(tmp_path / "none") is None
