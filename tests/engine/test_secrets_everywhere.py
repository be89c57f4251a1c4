"""Secrets in every place that people write them: the workload has them, and nothing that madlite writes or prints."""

from __future__ import annotations

import base64
import json
import random
import shlex
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.engine.checkout import Checkout
from tests.engine.guarded_repository import guarded_repository

ODD = "p@ss/w+rd=é\"'$ \\ <&>"
CHARS = string.ascii_letters + string.digits
RANDOM = random.Random(7)


def chars(size: int, alphabet: str = CHARS) -> str:
    return "".join(RANDOM.choice(alphabet) for _ in range(size))


TOKENS = {
    "github": "ghp_" + chars(36),
    "gitlab": "glpat-" + chars(20),
    "hub": "hf_" + chars(34, string.ascii_letters),
    "fine": f"github_pat_{chars(22)}_{chars(59)}",
    "slack": f"xoxb-{chars(12, string.digits)}-{chars(12, string.digits)}-{chars(24)}",
    "bearer": chars(30),
    "key": "AKIA" + chars(16, string.ascii_uppercase),
    "its secret": chars(40, CHARS + "/+"),
    "mirror": "m1rror-passw0rd",
    "column": "gho_" + chars(36),
    "option": "ghu_" + chars(36),
    "label": "ghs_" + chars(36),
    "field": "f1eld-passw0rd",
    "build": "bu1ld-passw0rd",
}
UNKNOWN = ("column",)  # to everybody but the script: what has its shape is masked, as it stands
SECRETS = (ODD, *(token for name, token in TOKENS.items() if name not in UNKNOWN))


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """The URL of a repository, with its user and password."""
    with guarded_repository(tmp_path, ODD) as guarded:
        yield guarded.url_with_password


def spellings(secret: str) -> dict[str, str]:
    """Return what tools make of a secret, each with the part of it that tells it."""
    data = secret.encode()
    told = {text: text for text in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret))}
    for text in (json.dumps(secret), shlex.quote(secret)):
        told[text] = text.strip("\\\"'")
    for n in range(3):
        text = base64.b64encode(b"xyz"[:n] + data + b"more").decode()
        told[text] = text[4:-8]
    return told


def texts_of(checkout: Checkout, *runs: subprocess.CompletedProcess[str], but: tuple[str, ...]) -> dict[str, str]:
    """Everything that was printed, and all that is in the checkout; `but` are files that others wrote."""
    texts = {f"{run.args[3:]} {name}": getattr(run, name) for run in runs for name in ("stdout", "stderr")}
    for path in checkout.folder.rglob("*"):
        if path.is_file() and path.name not in but:
            texts[str(path.relative_to(checkout.folder))] = path.read_bytes().decode(errors="replace")
    return texts


def assert_hidden(texts: dict[str, str]) -> None:
    every = [part for secret in SECRETS for part in spellings(secret).values()]
    every += [token for name, token in TOKENS.items() if name in UNKNOWN]
    found = {part: [where[-40:] for where, shown in texts.items() if part in shown] for part in every}
    left = [f"{part!r} in {places}" for part, places in found.items() if places]
    assert not left, "\n".join(left)


def card_with_secrets(checkout: Checkout, url: str) -> tuple[str, ...]:
    """Write a card whose fields hold secrets, whose script prints all of them, and return its command's words."""
    fields = {
        "url": url,
        "args": f"--hub-key {TOKENS['github']} --header 'Authorization: Bearer {TOKENS['bearer']}'",
        "multiple_results": "r.csv",
        "owner": f"https://me:{TOKENS['field']}@host",
        "additional_docker_run_options": f"-e OPTION={TOKENS['option']} --label who={TOKENS['label']}",
        "notes": {"of": [f"https://me:{TOKENS['field']}@host/x"]},
    }
    script = (
        'cat spelled.txt; env; echo "args: $*"; git config --get remote.origin.url\n'
        'set -x; : "$ODD" "$MIRROR"; { set +x; } 2>/dev/null; printf "%q\\n" "$ODD"; LC_ALL=C printf "%q\\n" "$ODD"\n'
        'echo unknown: gho""_$(printf %s ' + shlex.quote(TOKENS["column"][4:]) + ")\n"
        f"""printf 'model,performance,metric,note\\n%s,13,x,%s\\n' {TOKENS["gitlab"]} {TOKENS["column"]} >../r.csv\n"""
        'echo "performance: $(cat data.txt) x"\n'
    )
    checkout.card("everywhere", script, **fields)
    spelled = "".join(f"spelled: {text}\n" for secret in SECRETS for text in spellings(secret))
    (checkout.folder / "scripts/everywhere/spelled.txt").write_text(spelled)
    context = {
        "docker_env_vars": {
            "ODD": f"https://me:{quote(ODD, safe='')}@host",
            "KEYS": f"{TOKENS['key']}:{TOKENS['its secret']}",
            "HOOK": TOKENS["slack"],
        },
        "docker_build_arg": {"INDEX": f"https://me:{TOKENS['build']}@host/simple"},
        "tools_notes": {TOKENS["fine"]: f"https://{TOKENS['gitlab']}@host"},
    }
    mirror = f"env.MIRROR=https://bot:{TOKENS['mirror']}@mirror/simple"
    tag = f"everywhere:hub={TOKENS['hub']}"
    return ("--tags", tag, "-c", json.dumps(context), "--set", mirror)


OTHERS = ("models.json", "run.sh", "spelled.txt", "r.csv")


def test_no_secret_is_in_anything_that_is_written_or_printed(checkout: Checkout, repository: str) -> None:
    words = card_with_secrets(checkout, repository)
    more = (
        "--live-output",
        "-v",
        "--keep-model-dir",
        "--summary-output",
        "summary.json",
        "--manifest-output",
        "m.json",
    )
    ran = checkout.run(*words, *more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = [
        checkout.run(*words, "--dry-run", "-v"),
        *(
            checkout.madlite("explain", "--runtime", checkout.runtime, *words, *last)
            for last in ((), ("--all",), ("--json",), ("-v",))
        ),
        *(checkout.madlite("show", "last", *last) for last in ((), ("--json",))),
        *(checkout.madlite("runs", *last) for last in ((), ("--json",))),
        *(checkout.madlite("log", "last", *last) for last in ((), ("--raw",))),
        checkout.madlite("reproduce", "last"),
        *(checkout.madlite("discover", *last) for last in ((), ("--json",))),
        checkout.madlite("parse", *map(str, checkout.folder.glob("madlite_runs/*/run.log")), "--json"),
        checkout.madlite("report", "to-html", "--csv-file-path", "perf.csv"),
        checkout.madlite("run", "--tags", f"no_such_card_{TOKENS['hub']}"),
        checkout.madlite("run", "--tags", "everywhere", "--set", TOKENS["github"]),
    ]
    assert [run.returncode for run in shown[:-2]] == [0] * (len(shown) - 2), [run.stderr for run in shown]
    log = next(checkout.folder.glob("madlite_runs/*/run.log")).read_text()
    assert "remote.origin.url" not in log and "@127.0.0.1" not in log and "unknown: ***" in log
    assert (checkout.rows[0]["performance"], checkout.rows[0]["status"]) == ("13", "SUCCESS")
    assert_hidden(texts_of(checkout, ran, *shown, but=OTHERS))


def test_a_failure_and_a_build_hide_them_too(checkout: Checkout, repository: str) -> None:
    words = card_with_secrets(checkout, repository.replace("127.0.0.1", "127.0.0.1:1/x/"))
    failed = checkout.run(*words, "-v")
    assert failed.returncode == 3, failed.stdout + failed.stderr
    shown = [
        checkout.madlite("show", "last"),
        checkout.madlite("runs", "--json"),
        checkout.madlite("reproduce", "last"),
    ]
    assert_hidden(texts_of(checkout, failed, *shown, but=OTHERS))


@pytest.mark.parametrize("checkout", [pytest.param("host", marks=pytest.mark.host)], indirect=True)
def test_no_command_of_a_clone_has_the_password(checkout: Checkout, repository: str, tmp_path: Path) -> None:
    seen, trace = tmp_path / "seen", tmp_path / "trace"
    git = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    stand_in = tmp_path / "bin/git"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/bash\n{{ tr "\\0" "\\n" </proc/$$/cmdline; tr "\\0" "\\n" </proc/$PPID/cmdline; }} >>{seen}\n'
        f'exec {git} "$@"\n'
    )
    stand_in.chmod(0o755)
    checkout.card("cloned", 'echo "performance: $(cat data.txt) x"\n', url=repository)
    path = f"{stand_in.parent}:{checkout.env['PATH']}"
    done = checkout.run("--tags", "cloned", "--keep-model-dir", env={"PATH": path, "GIT_TRACE": str(trace)})
    assert done.returncode == 0, done.stdout + done.stderr
    told = {"argv": seen.read_text(), "git's own": trace.read_text()}
    assert "clone" in told["argv"] and "127.0.0.1" in told["argv"] and "remote-http" in told["git's own"]
    assert "@127.0.0.1" not in told["argv"] and "ada" not in told["argv"].split()
    config = (checkout.folder / "toy/.git/config").read_text()
    assert repository.partition("@")[2] in config
    assert_hidden({**told, "config": config, **texts_of(checkout, done, but=("models.json",))})
