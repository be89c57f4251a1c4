"""A workload that lays links, pipes and devices where madlite reads next: nothing of the host comes to light."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.checkout import Checkout

SECRET = "of-the-host-alone"
GOOD = 'echo "performance: 12.5 tokens_per_second"\n'


def assert_hidden(checkout: Checkout, *runs) -> None:
    texts = {f"{run.args} {name}": getattr(run, name) for run in runs for name in ("stdout", "stderr")}
    for path in checkout.folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    assert [where for where, text in texts.items() if SECRET in text] == []


def test_a_link_laid_in_place_of_a_config_brings_nothing_of_the_host_into_a_file(checkout: Checkout, tmp_path: Path):
    (tmp_path / "hosts.yaml").write_text(f"word: {SECRET}\n")
    plant = f'ln -sfn "{tmp_path}/hosts.yaml" "$(readlink -f ..)/scripts/a/c.yaml"\n'
    checkout.card("a", plant + GOOD, args="--config c.yaml")
    run = checkout.run("--tags", "a")
    assert run.returncode == 0, run.stderr
    assert (checkout.folder / "scripts/a/c.yaml").read_text() == f"word: {SECRET}\n"  # it was laid, and leads there
    assert f"c.yaml is not read: it is a link to {tmp_path}/hosts.yaml, outside of " in run.stdout + run.stderr
    assert json.loads((checkout.folder / "perf_entry.json").read_text())["configs"] is None
    assert json.loads((checkout.folder / "perf_super.json").read_text())[0]["configs"] is None
    (checkout.folder / "scripts/a/c.yaml").unlink()
    assert_hidden(checkout, run)


def test_pipes_and_devices_in_place_of_settings_stop_the_next_command_with_a_sentence(on_host: Checkout):
    device = 'mknod "$up/data.json" c 1 5 2>/dev/null || ln -sfn /dev/zero "$up/data.json"\n'
    plant = 'up=$(readlink -f ..)\nrm "$up/models.json"\nmkfifo "$up/credential.json" "$up/models.json"\n' + device
    on_host.card("a", plant + GOOD)
    assert on_host.run("--tags", "a").returncode == 0
    for name in ("models.json", "credential.json", "data.json"):  # in the order in which they are read
        told = on_host.madlite("explain", "--runtime", on_host.runtime, "--tags", "a")
        assert told.returncode == 4 and f"{name} cannot be read: it is a" in told.stderr, told.stderr
        (on_host.folder / name).unlink()
        if name == "models.json":
            (on_host.folder / name).write_text(json.dumps(on_host.cards))
    assert on_host.madlite("explain", "--runtime", on_host.runtime, "--tags", "a").returncode == 0
