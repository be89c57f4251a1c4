"""How a command line is read: abbreviations, old and new spellings, tags of several words."""

from __future__ import annotations

import click
import pytest

from madlite.cli.main import call
from madlite.cli.options import TagsCommand, batch_options, common_options, live_option, plan_options, tags_option
from tests.rows import each_row


@click.command("run", cls=TagsCommand)
@tags_option
@click.option("-n", "--dry-run", is_flag=True)
@live_option
@plan_options
@batch_options
@common_options
def run_like(**given):
    return given


def read(*args: str) -> dict:
    return run_like.main(args=list(args), standalone_mode=False)


def refused(*args: str) -> str:
    with pytest.raises(click.UsageError) as caught:
        read(*args)
    return caught.value.format_message()


@each_row(
    "args",
    [
        "--tags a b --timeout 3",
        "--timeout 3 --tags a b",
        "--tags a --tags b --timeout=3",
        "--tags=a b --timeout 3",
        "--tags=a --timeout 3 -t b",
        "-t a b --timeout 3",
        "-ta b --timeout 3",
        "--ta a b --ti 3",
    ],
)
def test_tags_are_read_in_every_spelling(args):
    given = read(*args.split())
    assert given["tags"] == ("a", "b") and given["timeout"] == 3


def test_short_options_in_one_word_may_end_with_tags():
    given = read("-lnt", "a", "b", "-v")
    assert given["live_output"] and given["dry_run"] and given["tags"] == ("a", "b")


def test_a_value_that_looks_like_an_option_stays_a_value():
    given = read("--set", "--tags", "--timeout", "-1", "-o", "--live", "--tags", "x")
    assert given["sets"] == ("--tags",) and given["timeout"] == -1
    assert str(given["output"]) == "--live" and not given["live_output"]
    given = read("--set", "--tim", "--tim", "5", "x")
    assert given["sets"] == ("--tim",) and given["timeout"] == 5


@each_row(
    ("args", "said"),
    [
        (["--tags"], "Option '--tags' requires an argument"),
        (["--tags", "--dry-run"], "no model is named after '--tags'"),
        (["-t", "-l"], "no model is named after '--tags'"),
    ],
)
def test_tags_without_a_word_is_refused(args, said):
    assert refused(*args).startswith(said)


# what madengine 1's own parser accepts of its options, and what it means there
@each_row(
    ("short", "key", "value"),
    [
        ("--live", "live_output", True),
        ("--keep-m", "keep_model_dir", True),
        ("--keep-a", "keep_alive", True),
        ("--clean", "clean_docker_cache", True),
        ("--c", "clean_docker_cache", True),
        ("--skip", "skip_model_run", True),
        ("--disable", "disable_skip_gpu_arch", True),
        ("--ignore", "ignore_deprecated", True),
        ("--ignore-deprecated-flag", "ignore_deprecated", True),
        ("--cleanup", "cleanup_perf", True),
        ("--out=x.csv", "output", "x.csv"),
        ("--tim=7", "timeout", 7),
        ("--data=d.json", "data_config", "d.json"),
        ("--tools=t.json", "tools_config", "t.json"),
        ("--force=/m", "force_mirror_local", "/m"),
        ("--gen=no", "sys_env_details", False),
        ("--additional-context={}", "additional_context", "{}"),
        ("--additional-context-f=c.json", "additional_context_file", "c.json"),
        ("--live_output", "live_output", True),
        ("--keep_m", "keep_model_dir", True),
        ("--additional_context={}", "additional_context", "{}"),
    ],
)
def test_long_options_may_be_abbreviated_and_have_underscores(short, key, value):
    given = read(short)[key]
    assert (given if isinstance(value, (bool, int)) else str(given)) == value


@each_row(
    ("word", "named"),
    [
        ("--keep", ["--keep-alive", "--keep-model-dir"]),
        ("--additional-c", ["--additional-context", "--additional-context-file"]),
        ("--manifest", ["--manifest-file", "--manifest-output"]),
    ],
)
def test_an_ambiguous_abbreviation_names_what_it_could_be(word, named):
    said = refused(word, "x")
    assert word in said and " or ".join(named) in said


def test_two_names_of_one_option_are_not_ambiguous_and_on_and_off_are_two_things():
    assert str(read("--data-c", "d.json")["data_config"]) == "d.json"
    assert read("--no-ignore")["ignore_deprecated"] is False
    assert "--no-ignore-deprecated" in refused("--no-") and "--no-plugins" in refused("--no-")


def test_an_exact_name_wins_over_a_longer_one():
    @click.command(cls=TagsCommand)
    @click.option("--out")
    @click.option("--output")
    def two(**given):
        return given

    assert two.main(args=["--out", "1", "--outp", "2"], standalone_mode=False) == {"out": "1", "output": "2"}


@each_row(
    ("args", "image"), [("--use-image --ta a b", "auto"), ("--use x --tags a b", "x"), ("-t a b --use-image", "auto")]
)
def test_an_option_that_may_lack_its_value_takes_no_option_for_it(args, image):
    @click.command(cls=TagsCommand)
    @tags_option
    @click.option("--use-image", is_flag=False, flag_value="auto", default="")
    def build_like(**given):
        return given

    assert build_like.main(args=args.split(), standalone_mode=False) == {"tags": ("a", "b"), "use_image": image}


def test_what_follows_two_dashes_is_left_alone():
    @click.command(cls=TagsCommand)
    @click.argument("words", nargs=-1)
    @click.option("--live-output", is_flag=True)
    def words(**given):
        return given

    given = words.main(args=["--", "--live", "--nope"], standalone_mode=False)
    assert given == {"words": ("--live", "--nope"), "live_output": False}


@each_row(
    ("spellings", "key"),
    [
        (("--data-config", "--data-config-file-name"), "data_config"),
        (("--tools-config", "--tools-json-file-name"), "tools_config"),
        (("-m", "--manifest-file"), "manifest_file"),
        (("-s", "--summary-output"), "summary_output"),
        (("-o", "--output"), "output"),
        (("-f", "--additional-context-file"), "additional_context_file"),
        (("-r", "--registry"), "registry"),
    ],
)
def test_both_spellings_are_one_option_and_the_last_wins(spellings, key):
    for first, second in (spellings, reversed(spellings)):
        assert str(read(first, "x")[key]) == "x"
        assert str(read(first, "x", second, "y")[key]) == "y"


@each_row(
    ("args", "value"),
    [
        ("", None),
        ("--sys-env-details", True),
        ("--no-sys-env-details", False),
        ("--generate-sys-env-details true", True),
        ("--generate-sys-env-details True", True),
        ("--generate-sys-env-details 1", True),
        ("--generate-sys-env-details yes", True),
        ("--generate-sys-env-details false", False),
        ("--generate-sys-env-details 0", False),
        ("--generate-sys-env-details on", False),
        ("--generate-sys-env-details whatever", False),
        ("--sys-env-details --generate-sys-env-details no", False),
        ("--generate-sys-env-details no --sys-env-details", True),
        ("--generate-sys-env-details yes --no-sys-env-details", False),
        ("--sys-env-details --generate-sys-env-details no --sys-env-details", True),
    ],
)
def test_system_details_are_a_switch_and_a_word_and_the_last_wins(args, value):
    assert read(*args.split())["sys_env_details"] is value


def test_what_is_not_given_is_not_there():
    given = read()
    for key in ("data_config", "tools_config", "force_mirror_local", "manifest_file", "summary_output", "timeout"):
        assert given[key] is None
    assert str(given["manifest_output"]) == "build_manifest.json" and str(given["output"]) == "perf.csv"
    assert given["registry"] == "" and given["cleanup_perf"] is False


def test_help_has_every_option_once_under_a_title(capsys):
    read("--help-all")
    lines = capsys.readouterr().out.splitlines()
    for option in (param for param in run_like.params if isinstance(param, click.Option)):
        assert len([line for line in lines if line.startswith("  -") and option.opts[-1] in line.split("  ")[1]]) >= 1
    titles = [line for line in lines[1:] if line and not line.startswith(" ")]
    assert titles == ["Models:", "Plan:", "Image and container:", "Data and tools:", "Results:", "Options:"]


@each_row("command", ["run", "explain", "plan", "prepare", "scaling", "tune", "bisect"])
def test_help_of_many_options_is_one_list_of_those_that_most_runs_use(capsys, command):
    assert call([command, "--help"]) == 0
    short = capsys.readouterr().out
    options = [line for line in short.splitlines() if line.startswith("  -")]
    assert len(options) < 30 and "  --help-all " in short and "--data-config" not in short
    assert short.count("\nOptions:\n") == 1 and "\nPlan:\n" not in short
    assert call([command, "--help-all"]) == 0
    every = capsys.readouterr().out
    assert "--data-config" in every and "\nPlan:\n" in every
    assert "None]" not in every, "a range without ends"
    assert "[TAG]..." not in every.partition("\n")[2], "an entry without a text"
    assert all(option.split("  ")[1].partition(" ")[0] in every for option in options)


@each_row("args", [["-v"], ["--version"], ["--vers"]])
def test_the_version_is_told(args, capsys):
    assert call(args) == 0
    assert capsys.readouterr().out.startswith("madlite 0.")


def test_no_command_is_the_help(capsys):
    assert call([]) == 0
    assert "Start here:\n  run " in capsys.readouterr().out


def test_an_abbreviation_before_the_command_leaves_the_command_alone(capsys):
    assert call(["discover", "--ver"]) == 0
    assert "NAME" in capsys.readouterr().out


@each_row("args", [["doctor", "--plugins", "--js"], ["clean", "--ye", "--kep"]])
def test_every_command_takes_abbreviations(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(args) == 0


def test_a_missing_value_points_at_the_commands_own_help(capsys):
    assert call(["explain", "demo", "--timeo"]) == 4
    assert "madlite explain --help" in capsys.readouterr().err


def test_a_command_that_a_plugin_adds_takes_abbreviations():
    from madlite.cli.main import Group

    group = Group("madlite")

    @group.command()
    @click.option("--colour")
    def paint(colour):
        return colour

    assert group.main(args=["paint", "--col", "red"], standalone_mode=False) == "red"


@each_row("words", [["run", "--timeout", "abc"], ["parse", "x", "--warmup", "abc"], ["run", "--steps", "abc"]])
def test_a_number_that_is_none_has_one_name(capsys, words):
    assert call(words) == 4
    assert f"invalid value for '{words[-2]}': 'abc' is not a valid whole number" in capsys.readouterr().err


@each_row("text", ["nan", "inf", "-inf"])
@each_row(
    "words",
    [
        ("compare", "a", "b", "--alpha"),
        ("run", "--tags", "one", "--retry", "1", "--retry-wait"),
        ("run", "--tags", "one", "--settle", "--settle-timeout"),
        ("run", "--tags", "one", "--silence-limit"),
        ("tune", "one", "--minutes"),
        ("runs", "--watch", "--interval"),
    ],
)
def test_no_option_takes_a_number_that_is_none(capsys, words, text):
    assert call([*words, text]) == 4
    error = capsys.readouterr().err
    assert words[-1] in error and ("is no finite number" in error or "not in the range" in error)


def test_an_option_of_several_names_is_named_as_it_was_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("--at-most", "--parallel"):
        assert call(["run", "-t", "a", name, "2", "--exclusive"]) == 4
        error = capsys.readouterr().err
        assert f"{name} beside --exclusive" in error and f"leave {name} or --exclusive out" in error
    assert call(["run", "--tags", "a", "--at-most=2", "--repeat", "3"]) == 4
    assert "--at-most beside --repeat" in capsys.readouterr().err
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_NNODES", "2"), ("SLURM_JOB_NODELIST", "n[1-2]")):
        monkeypatch.setenv(name, value)
    assert call(["run", "--tags", "a", "--at-most", "auto"]) == 4
    error = capsys.readouterr().err
    assert "--at-most auto on the nodes of an allocation" in error and "leave --at-most out" in error


def test_a_batch_that_goes_on_with_other_options_needs_its_tags(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--resume", "--parallel", "2"]) == 4
    error = capsys.readouterr().err
    assert "--resume beside other options" in error and "add the tags of the batch" in error
    assert not [*tmp_path.iterdir()]
