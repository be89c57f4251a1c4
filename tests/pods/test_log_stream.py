"""A pod's log across broken connections, and what of it is the workload's."""

from __future__ import annotations

import pytest

from madlite.platforms.kubernetes.api import Refusal
from madlite.platforms.kubernetes.session import LogPosition, Mark, MarkReader, follow

LINES = [f"2026-01-01T00:00:0{second}.{part}Z {text}\n" for second, part, text in (
    (1, "1", "a"), (1, "10", "b"), (1, "100000001", "c"), (2, "5", "d"), (2, "5", "e"), (3, "", "f"),
)]  # fmt: skip
LINES[-1] = "2026-01-01T00:00:03Z f\n"


class Answer:
    """One connection: its pieces, and whether it breaks after them."""

    def __init__(self, data: bytes, *, breaks: bool) -> None:
        self.data, self.breaks = data, breaks

    def stream(self, amount: int, decode_content: bool) -> object:
        for at in range(0, len(self.data), 7):
            yield self.data[at : at + 7]
        if self.breaks:
            raise OSError("reset")


def read(cuts: list[int]) -> tuple[str, list[str]]:
    """Read the log over connections that break after so many bytes, each from the second asked for on."""
    asked: list[str] = []
    left = list(cuts)

    def open_log(since: str) -> Answer:
        asked.append(since)
        text = "".join(line for line in LINES if line[:19] >= since[:19])
        return Answer(text.encode()[: left[0]] if left else text.encode(), breaks=bool(left and left.pop(0)))

    return b"".join(follow(open_log, lambda: not left, lambda: None, LogPosition())).decode(), asked


def test_each_line_comes_once_wherever_a_connection_breaks():
    whole = sum(map(len, LINES))
    for first in range(whole):
        assert read([first])[0] == "a\nb\nc\nd\ne\nf\n", first
        assert read([first, whole // 2])[0] == "a\nb\nc\nd\ne\nf\n", first


def test_it_is_asked_for_from_the_last_line_s_second_on():
    assert read([len(LINES[0]) + 3])[1][:2] == ["", "2026-01-01T00:00:01Z"]


@pytest.mark.parametrize("trouble", [Refusal("gone", status=404), Refusal("node", status=500), OSError("silent")])
def test_a_log_that_is_gone_ends_and_is_known_to_be_cut(trouble):
    def gone(since: str) -> Answer:
        raise trouble

    position = LogPosition()
    assert list(follow(gone, lambda: True, lambda: None, position)) == [] and position.is_cut


@pytest.mark.parametrize("trouble", [Refusal("no answer"), Refusal("busy", status=503)])
def test_the_end_of_a_log_is_waited_for_while_the_cluster_is_away(trouble):
    left = [trouble] * 30

    def away(since: str) -> Answer:
        if left:
            raise left.pop()
        return Answer("".join(line for line in LINES if line[:19] >= since[:19]).encode(), breaks=False)

    position = LogPosition()
    assert b"".join(follow(away, lambda: True, lambda: None, position)) == b"a\nb\nc\nd\ne\nf\n"
    assert not position.is_cut


def test_a_line_without_a_time_is_taken_as_it_is():
    assert LogPosition().take(b"unable to retrieve container logs\n") == b"unable to retrieve container logs\n"


def test_marks_are_told_from_output():
    reader = MarkReader("run-1")
    lines = [b"\n", b"#madlite run-1 begin 0\n", b"a\n", b"\n", b"b\n", b"\n", b"#madlite run-1 end 0 3\n"]
    lines += [b"#madlite other begin 1\n", b"\n", b"#madlite run-1 file out/x.csv\n", b"YQBi\n", b"\n"]
    lines += [b"#madlite run-1 end-of-file\n", b"last"]
    said = [one for line in lines for one in reader.feed(line)]
    assert said == [
        Mark(kind="begin", number=0), b"a\n", b"\n", b"b\n", Mark(kind="end", number=0, code=3),
        b"#madlite other begin 1\n", Mark(kind="file", name="out/x.csv", data=b"a\0b"), b"last",
    ]  # fmt: skip
