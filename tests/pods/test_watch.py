"""Pods that are watched, and listed anew wherever a watch ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from madlite.errors import RuntimeProblem
from madlite.platforms.kubernetes import watch
from madlite.platforms.kubernetes.api import Refusal
from madlite.platforms.kubernetes.watch import PodWatch
from tests.waiting import wait_until


def pod(name: str, version: int, phase: str = "Running") -> dict:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"phase": phase}}


class Server:
    """Answers lists and watches in the order in which they were planned; the last watch stays open until `end`."""

    def __init__(self, lists: list, watches: list) -> None:
        self.lists, self.watches = lists, watches
        self.listed, self.watched = 0, []

    def list_pods(self, run: str) -> tuple[list[dict], str]:
        self.listed += 1
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch_pods(self, run: str, version: str) -> Iterator[tuple[str, dict]]:
        self.watched.append(version)
        for one in self.watches.pop(0) if self.watches else [Refusal("nothing more", status=503)]:
            if isinstance(one, Exception):
                raise one
            yield one


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(watch, "POLL_S", 0.01)


@pytest.fixture
def watched():
    """Return what watches the pods of a server until the test ends."""
    made = []

    def start(*args, **named) -> PodWatch:
        made.append(PodWatch(*args, **named))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_after_a_watch_that_breaks_the_pods_are_listed_and_watched_anew(watched):
    server = Server(
        [([pod("a", 5, "Pending")], "7"), ([pod("a", 8)], "20"), ([], "22")],
        [[("MODIFIED", pod("a", 8)), Refusal("connection reset")], [("DELETED", pod("a", 21, "Failed"))]],
    )
    pods = watched(server, "r")
    wait_until(lambda: pods.get("a") == (pod("a", 21, "Failed"), False), "the pod's end")
    assert server.watched[:2] == ["7", "20"]


def test_a_version_that_is_gone_is_listed_anew_and_what_went_meanwhile_is_known(watched):
    server = Server(
        [([pod("a", 5), pod("b", 6)], "7"), ([pod("b", 30, "Succeeded")], "31")], [[Refusal("too old", status=410)]]
    )
    pods = watched(server, "r")
    wait_until(lambda: server.listed >= 2 and len(pods.now()) == 1, "the second list")
    assert pods.get("a") == (pod("a", 5), False)
    assert pods.get("b")[0]["status"]["phase"] == "Succeeded"
    wait_until(lambda: "31" in server.watched, "a watch from the new version")


def test_pods_that_may_not_be_watched_are_polled(watched):
    lists = [([pod("a", n, "Pending")], str(n)) for n in (5, 6)] + [([pod("a", 9)], "9")]
    server = Server(lists, [[Refusal("cannot watch", status=403)]])
    pods = watched(server, "r")
    wait_until(lambda: pods.get("a")[0] and pods.get("a")[0]["status"]["phase"] == "Running", "the third list")


def test_a_list_that_is_refused_is_a_problem_at_once_and_one_without_an_answer_after_a_day(watched):
    with pytest.raises(RuntimeProblem, match="not yours"):
        pods = watched(Server([Refusal("not yours", status=403)], []), "r")
        pods.wait(0, 60)
        pods.now()
    now = [0.0]
    server = Server([Refusal("no answer")], [])

    def clock() -> float:
        now[0] += 20_000
        return now[0]

    pods = watched(server, "r", clock)
    pods.wait(0, 60)
    with pytest.raises(RuntimeProblem, match="no answer"):
        pods.now()
    assert server.listed > 2


def test_who_only_reads_what_a_job_leaves_waits_for_a_day_and_for_a_login(watched):
    now = [0.0]

    def clock() -> float:
        now[0] = min(now[0] + 3600, 20 * 3600)
        return now[0]

    listed = ([pod("a", 5)], "7")
    server = Server([Refusal("no answer"), Refusal("who is this", status=401), listed], [])
    pods = watched(server, "r", clock)
    wait_until(lambda: server.listed >= 3, "the list after hours")
    assert pods.get("a") == (pod("a", 5), True)
