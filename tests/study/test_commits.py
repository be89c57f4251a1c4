"""The commits between two, from a real repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from madlite.study.commits import git_here, list_commits

SUBJECTS = ("one", "two\x0cpages", "three\x85lines", "four \u2028 lines", "five")


@pytest.mark.host
def test_a_subject_with_any_line_end_in_it_is_one_commit(tmp_path: Path):
    def git(*words: str, text: str = "") -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=240, check=True)
        return done.stdout.decode()

    git("init", "-q")
    for subject in SUBJECTS:
        git("commit", "-q", "--allow-empty", "-F", "-", text=subject)
    names = git("rev-list", "--reverse", "HEAD").split()
    for good, bad, order in ((names[0], "HEAD", 1), ("HEAD", names[0], -1)):
        found = list_commits(git_here(tmp_path, os.environ), "here", good, bad)[::order]
        assert [one.name for one in found] == names
        assert [one.subject for one in found] == ["one", "two pages", "three lines", "four lines", "five"]
