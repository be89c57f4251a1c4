"""Rendering: strict, quoted, sandboxed, and searched in the right order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import tomli
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.plan.make import make_plan
from madlite.plan.plan_file import quote_shell, render, write_toml
from tests.plan.conftest import rendered_draft
from tests.rows import each_row

NASTY = ["a b", "$(touch x)", "'", '"', "`id`", "a\nb", "\\", "-n", "", "ü", "\x7f\x01"]


def write(folder, text):
    file = folder / "tiny/run.sh.j2"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return folder


def test_the_nearest_folder_wins(given, tmp_path):
    far, near = write(tmp_path / "far", "far"), write(tmp_path / "near", "near {{ variant.steps }}")
    (file,) = render(make_plan(given()), [tmp_path / "none", near, far])
    assert file.data == b"near 50" and file.path == "run.sh"


@each_row(
    ("text", "said"),
    [
        ("ok\n{{ variant.stepz }}", "line 2.*stepz"),
        ("{{ nope }}", "'nope' is undefined"),
        ("{% if %}", "line 1"),
        ("{% include 'absent.j2' %}", "absent.j2"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("a\n{{ 1 / 0 }}", "line 2.*ZeroDivisionError"),
        ("{{ variant.steps + 'a' }}", "TypeError"),
        ("{{ range(10 ** 9) }}", "OverflowError"),
    ],
)
def test_a_templates_mistake_is_one_sentence_with_its_place(given, tmp_path, text, said):
    with pytest.raises(UsageProblem, match=said) as caught:
        render(make_plan(given()), [write(tmp_path / "t", text)])
    assert "tiny" in caught.value.message


def test_a_template_of_noise_is_one_sentence(given, tmp_path):
    folder = write(tmp_path / "t", "")
    (folder / "tiny/run.sh.j2").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageProblem, match=r"run\.sh\.j2.*is not UTF-8"):
        render(make_plan(given()), [folder])


def test_a_missing_template_names_where_it_was_looked_for(given, tmp_path):
    with pytest.raises(UsageProblem, match=r"tiny/run\.sh\.j2.*nowhere"):
        render(make_plan(given()), [tmp_path / "nowhere"])


@each_row("text", NASTY)
def test_shell_words_survive_a_shell(text):
    said = subprocess.run(["bash", "-c", f"printf %s {quote_shell(text)}"], capture_output=True, check=True).stdout
    assert said.decode() == text


def test_a_text_is_split_into_words_as_a_shell_does_it(given, tmp_path):
    folder = write(tmp_path / "t", """{{ "--a 'b c' --d=\\\\$e" | words | join("|") }}""")
    (file,) = render(make_plan(given()), [folder])
    assert file.data == b"--a|b c|--d=$e"


def test_a_quote_without_end_is_a_template_s_mistake(given, tmp_path):
    with pytest.raises(UsageProblem, match="No closing quotation"):
        render(make_plan(given()), [write(tmp_path / "t", """{{ "'a" | words }}""")])


@each_row("value", [*NASTY, True, 3, -1.5e-8, ["a", 1], []])
def test_values_survive_toml(value):
    assert tomli.loads(f"x = {write_toml(value)}")["x"] == value


def test_secrets_do_not_render(given, tmp_path):
    from madlite.plan.context import Options

    options = Options(workspace=tmp_path, output=tmp_path / "p", environ={"HF_TOKEN": "hf_hush_hush"})
    plan = make_plan(given(options=options, spec=rendered_draft()))
    (file,) = render(plan, [write(tmp_path / "t", "{{ plan.env.HF_TOKEN }} {{ plan.env }}")])
    assert b"hush" not in file.data


@each_row("text", ['{{ plan.env["HF_TOKEN"].reveal() }}', "{{ plan.image.build_args.MAD_SECRETS_X.reveal() }}"])
def test_a_template_has_no_way_to_a_secret(given, tmp_path, text):
    from madlite.plan.context import Options
    from madlite.plan.images import Dockerfile

    environ = {"HF_TOKEN": "hf_hush_hush", "MAD_SECRETS_X": "hf_hush_hush"}
    options = Options(workspace=tmp_path, output=tmp_path / "p", environ=environ)
    file = Dockerfile(path=tmp_path / "x.Dockerfile", context=tmp_path, base="b:1")
    plan = make_plan(given(options=options, spec=rendered_draft(), dockerfile=file))
    with pytest.raises(UsageProblem, match="reveal") as caught:
        render(plan, [write(tmp_path / "t", text)])
    assert "hush" not in str(caught.value)
    (shown,) = render(plan, [write(tmp_path / "u", text.replace(".reveal()", ""))])
    assert shown.data == b"***"


def test_a_profiled_run_finds_the_profiler_wherever_its_preparation_went(given, tmp_path):
    child = '{% extends "_base.sh.j2" %}{% block prepare %}cd /{% endblock %}'
    child += '{% block launch %}echo "$PYTHONPATH|$MADLITE_PROFILE"{% endblock %}'
    plan = replace(make_plan(given()), profile=True)
    (file,) = render(plan, [write(tmp_path / "own", child), Path(__file__).parents[2] / "templates"])
    script = tmp_path / "run.sh"
    script.write_bytes(file.data)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "/mine"}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=env, check=True)
    # 50 steps are measured; of the five after them the last three are recorded
    assert done.stdout.strip() == f"{tmp_path}/profile:/mine|50 3 {tmp_path}/profile.json.gz"
    assert plan.trained_steps == 55
