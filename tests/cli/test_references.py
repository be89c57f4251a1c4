"""`compare published --list`, and the line of `run` and `show` that compares a success with the nearest figure."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.backends.loader import load_plugins
from madlite.cli.batches import compare_run
from madlite.cli.main import call
from madlite.cli.screens import PlainScreen, Sink
from madlite.model import Card, Cause, Machine, Metric, Place, Result, Status, Variant
from tests import commands
from tests.cli.stored_runs import store
from tests.engine.checkout import UNPROBED
from tests.factories import WINDOW, make_plan

FIGURE = (
    'model = "Llama-3.1-8B"\ndevice = "MI300X"\nprecision = "BF16"\nseq_len = 8192\nmicro_batch = 4\nvalue = 9000\n'
)
OWN = f'source = "lab sheet"\ndate = 2026-11-01\nmetric = "tokens_per_s_per_gpu"\n[[reference]]\n{FIGURE}'


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MADLITE_REFERENCES", raising=False)
    return tmp_path


def metric(name: str, value: float) -> Metric:
    return Metric(metric=name, text=f"{value:g}", value=value, status=Status.SUCCESS)


SUCCESS = Result(
    plan_id="1",
    status=Status.SUCCESS,
    window=WINDOW,
    metrics=(metric("TFLOPS_per_gpu", 534.25), metric("tokens_per_s_per_gpu", 9321.0)),
    started="2026-01-02T03:04:05+00:00",
)


def on_mi300x(folder: Path) -> dict[str, object]:
    return {
        "card": Card(name="pyt_train_llama-3.1-8b", root=folder, source="a test"),
        "backend": "pytorch_fsdp",
        "machine": Machine(vendor="AMD", device="MI300X", architecture="gfx942"),
        "place": Place(gpus_per_node=8),
        "variant": Variant(model="Llama-3.1-8B", precision="BF16", seq_len=8192, micro_batch=4, release="v25.2"),
    }


BY_README = (
    "534.25 TFLOPS_per_gpu is 98.4 % of published 542.94 TFLOP/s/GPU "
    "(README of rocm/pytorch-training v25.2, MI300X; batch 3, here 4)"
)
BY_OWN = "103.6 % of published 9,000 tokens/s/GPU (lab sheet in madlite_references.toml, MI300X)"


# The command.


def test_the_list_is_filtered_and_names_source_and_condition(capsys):
    assert call(["compare", "published", "--list", "--model", "pyt_train_llama-3.1-8b", "--device", "MI300X"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", lines[0])[:3] == ["MODEL", "GPU", "GPUS"]
    (bf16,) = [line for line in lines if "  BF16  " in line and "542.94" in line]
    assert re.search(r" MI300X .* 542.94 +TFLOP/s/GPU ", bf16) and "MI325X" not in "\n".join(lines)
    (note,) = [line for line in lines if line.startswith(bf16.rpartition(" ")[2])]
    assert "README of rocm/pytorch-training v25.2, undated: ROCm 6.3.0, 8x MI300X" in note


def test_json_has_every_key_and_where_it_is_from(capsys, place):
    (place / "madlite_references.toml").write_text(OWN)
    assert call(["compare", "published", "--list", "--json"]) == 0
    (one,) = (one for one in json.loads(capsys.readouterr().out) if one["source"] == "lab sheet")
    assert (one["model"], one["value"], one["date"], one["nodes"]) == ("Llama-3.1-8B", 9000.0, "2026-11-01", 1)
    assert one["from"] == "madlite_references.toml"
    assert call(["compare", "published", "--list", "--precision", "fp8", "--device", "MI325X", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["from"] for one in found} == {"plugin published"} and len(found) == 3


def test_files_that_the_environment_names_are_read(capsys, place, monkeypatch):
    (place / "a.toml").write_text(OWN)
    (place / "b.toml").write_text(OWN.replace("lab sheet", "other sheet"))
    monkeypatch.setenv("MADLITE_REFERENCES", f"a.toml{os.pathsep}{place / 'b.toml'}{os.pathsep}")
    assert call(["compare", "published", "--list", "--json"]) == 0
    sources = [one["source"] for one in json.loads(capsys.readouterr().out)]
    assert [source for source in sources if "sheet" in source] == ["lab sheet", "other sheet"]
    monkeypatch.setenv("MADLITE_REFERENCES", "gone.toml")
    assert call(["compare", "published", "--list"]) == 4
    assert "error: references gone.toml cannot be read" in capsys.readouterr().err


def test_what_nothing_has_is_said(capsys):
    assert call(["compare", "published", "--list", "--model", "nobody-1b"]) == 0
    assert re.fullmatch(r"none of \d+ published figures is one of those\n", capsys.readouterr().out)


def test_a_broken_file_of_the_user_ends_the_command(capsys, place):
    (place / "madlite_references.toml").write_text(OWN.replace("seq_len", "seqlen"))
    assert call(["compare", "published", "--list"]) == 4
    told = capsys.readouterr().err
    assert "madlite_references.toml, reference 1: key 'seqlen' is unknown; did you mean seq_len?" in told


# A run's end.


@pytest.fixture
def ended(place):
    """Return the last lines of a run."""

    def end(result: Result, **changes: object) -> list[str]:
        plan = make_plan(place, **{**on_mi300x(place), **changes})
        read, write = os.pipe()
        sink = Sink(write)
        screen = PlainScreen(sink, live=False, compare=partial(compare_run, load_plugins("", only_built_in=True)))
        screen.finished(plan, result)
        sink.close()
        os.close(write)
        with os.fdopen(read) as file:
            return [line.strip() for line in file]

    return end


def test_a_success_is_put_beside_the_published_figure_below_its_verdict(ended, place):
    lines = ended(SUCCESS)
    assert lines[0].startswith("SUCCESS pyt_train_llama-3.1-8b  9321 tokens_per_s_per_gpu")
    assert lines[2] == BY_README
    assert f"{BY_README}; the number is suspect" in ended(replace(SUCCESS, suspect=("the loss rises",)))
    (place / "madlite_references.toml").write_text(OWN)
    assert BY_OWN in ended(SUCCESS), "a file of the working folder counts too and is named"


def test_a_failure_is_compared_with_nothing_and_loads_nothing(ended, monkeypatch):
    monkeypatch.setattr("madlite.reports.references.load_references", lambda *given: pytest.fail("figures were loaded"))
    failed = replace(SUCCESS, status=Status.FAILURE, cause=Cause.NAN_LOSS, reason="a loss is NaN")
    assert not any("published" in line for line in ended(failed))
    assert not any("published" in line for line in ended(SUCCESS, variant=None))


def test_a_broken_file_costs_a_run_nothing_but_the_line(ended, place):
    (place / "madlite_references.toml").write_text("[[reference]\n")
    (said,) = [line for line in ended(SUCCESS) if "published" in line]
    assert said.startswith("not compared with published figures: references ") and "is no TOML" in said


def test_a_pipe_a_loop_or_a_device_in_its_place_is_not_read(ended, place):
    file = place / "madlite_references.toml"
    plants = [lambda: os.mkfifo(file), *(partial(file.symlink_to, to) for to in ("/dev/zero", "/dev/tty", file))]
    for plant in plants:
        plant()
        (said,) = [line for line in ended(SUCCESS) if "published" in line]
        assert said.startswith("not compared with published figures: ") and f"{file} cannot be " in said
        file.unlink()


def test_text_of_a_planted_file_does_not_steer_the_terminal_or_show_a_secret(ended, place):
    planted = OWN.replace("lab sheet", r"\u001b[2Jlab hf_abcdefghijklmnopqrstuvwxyzABCDEFGH")
    (place / "madlite_references.toml").write_text(planted)
    (said,) = [line for line in ended(SUCCESS) if "published" in line]
    assert "\x1b" not in said and "hf_abc" not in said and "lab ***" in said


# `madlite show`.


def test_show_has_the_line_and_of_another_run_none(capsys, place):
    store(place, "20260102T030405-llama-3fa91c", SUCCESS, **on_mi300x(place))
    assert call(["show", "last"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "published" in line]
    assert line == f"  compared        {BY_README}"
    store(place, "20260102T030406-other-4fa91c", replace(SUCCESS, started="2026-01-02T03:05:05+00:00"))
    assert call(["show", "last"]) == 0
    assert "published" not in capsys.readouterr().out


# With a real run.


@pytest.mark.host
def test_a_run_of_a_script_is_compared_with_the_users_own_figure(place):
    (place / "train.py").write_text('for n in range(1, 13):\n    print(f"step {n} loss {3 - n / 20} tps 1000")\n')
    (place / "madlite_references.toml").write_text(
        OWN.replace("MI300X", "cpu").replace("Llama-3.1-8B", "mine 1b").replace("micro_batch = 4\n", "")
    )
    sets = {
        "script": "train.py",
        "declared": "model,precision,seq_len",
        "model": "Mine-1B",
        "precision": "BF16",
        "seq_len": "8192",
        "step": r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>\d+)",
    }
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    python = place / "python-without-torch"  # which it starts as torchrun would
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "MADLITE_PYTHON": str(python)}
    done = commands.run(["run", "--runtime", "host", "--tags", "torchrun_script", *UNPROBED, *words], place, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11.1 % of published 9,000 tokens/s/GPU (lab sheet in madlite_references.toml, cpu)" in done.stdout
