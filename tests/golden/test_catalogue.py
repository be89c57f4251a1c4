"""Every training card of MAD is planned on pretended Instinct hosts, with nothing said that is not so."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests import commands
from tests.tiers import first_of

pytestmark = pytest.mark.host

CARDS = Path(__file__).parents[1] / "data/cards.json"
HEADER = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=rocm/x\nFROM $BASE_DOCKER\n"
WITHOUT_IMAGE = 3  # cards that name neither a Dockerfile nor an image
ARCH = {"8xMI300X": "gfx942", "8xMI355X": "gfx950", "8xMI325X": "gfx942"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A checkout with all cards, and of each its script and Dockerfile."""
    folder = tmp_path_factory.mktemp("mad")
    text = CARDS.read_text()
    (folder / "models.json").write_text(text)
    for card in json.loads(text):
        script = folder / card["scripts"]
        script = script if script.suffix else script / "run.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch()
        if card.get("dockerfile"):
            dockerfile = folder / f"{card['dockerfile']}.ubuntu.amd.Dockerfile"
            dockerfile.parent.mkdir(parents=True, exist_ok=True)
            dockerfile.write_text(HEADER)
    return folder


def said(folder: Path, *args: str) -> str:
    done = commands.run([*args, "--tags", "all"], folder, os.environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("machine", first_of(ARCH, 2))
def test_every_card_is_planned(checkout: Path, machine: str) -> None:
    cards = json.loads(CARDS.read_text())
    text = said(checkout, "run", "--dry-run", "--machine", machine)
    assert text.count(" · runtime docker\n") == len(cards) == 484
    arch = ARCH[machine]
    skipped = [card["name"] for card in cards if arch in card.get("skip_gpu_arch", "").replace(" ", "").split(",")]
    reasons = re.findall(r"^# would not start: (.*)$", text, re.MULTILINE)
    assert {f"SKIPPED Skipping model {name}: it is not meant for {arch}" for name in skipped} <= set(reasons)
    rest = [reason for reason in reasons if not reason.startswith("SKIPPED")]
    assert len(rest) == WITHOUT_IMAGE and all("names neither a Dockerfile nor an image" in reason for reason in rest)
    assert list(checkout.glob("madlite_runs")) == list(checkout.glob("perf*")) == []


RENDERED = re.compile(r"primus_pyt_\w+_train_|primus_pyt_train_|pyt_megatron_lm_train_|pyt_train_")
TRUE_WARNINGS = ("the learning rate rises for", "a proxy of", "the overlay of this card, a newer RCCL")


def test_elsewhere_training_cards_are_rendered_and_the_others_say_that_they_are_scripts(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_bytes(CARDS.read_bytes())
    words = ("explain", "--all", "--machine", "8xMI300X", "--tags", "all")
    done = commands.run(words, tmp_path, os.environ)
    assert done.returncode == 0, done.stderr
    pages = re.findall(r"^(\S+)  \(backend (\w+), card from models.json\)$", done.stdout, re.MULTILINE)
    names = [card["name"] for card in json.loads(CARDS.read_text())]
    rendered = {name for name in names if RENDERED.match(name.rpartition("/")[2])}
    assert {name for name, _ in pages} == set(names) and len(rendered) == 3 + 22 + 12 + 28
    assert {name for name, backend in pages if backend != "script"} == rendered
    without_script = done.stdout.count("is not in this folder: ")
    assert without_script + done.stdout.count("not meant for") == 484 - len(rendered)
    assert done.stdout.count("does not exist; a card of ROCm/MAD runs in a checkout of it") > 10
    warnings = done.stderr.splitlines()
    assert warnings and all(any(true in line for true in TRUE_WARNINGS) for line in warnings), done.stderr
