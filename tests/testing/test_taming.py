"""The text of a script that is safe to read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from madlite.testing.taming import tame

LINES = [
    ("train a > b", 'train a  203<<<"$( (kit_target b) >&2)" '),
    ("train a 2>/dev/null >&2 | tee c", 'train a  203<<<"$( (kit_target /dev/null) >&2)"  >&2 | tee c'),
    ("train 2>&1", "train 2>&1"),
    ("exec 4>&-", "exec  "),
    ("echo 'a > b' \"c > d\" e\\>f # > g", "echo 'a > b' \"c > d\" e\\>f # > g"),
    ('x="$(a > b)"', 'x="$(a  203<<<"$( (kit_target b) >&2)" )"'),
    ("[[ a < b && ( c > d ) ]] && e", "[[ a < b && ( c > d ) ]] && e"),
    ("(( a > b ))", "(( a > b ))"),
    ("for ((i = 0; i < 3; i++)); do a; done", "for ((i = 0; i < 3; i++)); do a; done"),
    ("echo $((1 > 0))", "echo $((1 > 0))"),
    ("/bin/a b; if c/d; then ./e; fi", "kit_run /bin/a b; if kit_run c/d; then kit_run ./e; fi"),
    ('A=b "$c" d | "$e/f"', 'A=b kit_run "$c" d | kit_run "$e/f"'),
    ('case $a in */*) "$b" ;; "c d" | e) /f ;; esac > g', None),
    ("f() { /a; }\nfunction g { /b; }", "f() { kit_run /a; }\nfunction g { kit_run /b; }"),
    ('a=("$b" /c\n  /d) # e', 'a=("$b" /c\n  /d) # e'),
    ("while read -r a; do b; done < <(c)", 'while read -r a; do b; done  203<<<"$( (kit_target <(c)) >&2)" '),
    (": ${a:?is not set} ${b?} ${c:-d}", ": ${a:-is not set} ${b:-} ${c:-d}"),
    ("echo $$ $! ${!a}", "echo ${kit_pid} ${kit_pid} ${!a}"),
    ("PATH=/a:$PATH b", "kit_PATH=/a:$PATH b"),
    ('set -- a "b c"; set -e', 'builtin set -- a "b c"; set -e'),
    ("a <<'E' | b\n$(c) > d\nE\ne", "a 202<<<x <<'E' | b\n$(c) > d\nE\ne"),
    ("a <<E\n$(/c) > d\nE\ne", "a 202<<<x <<E\n$(kit_run /c) > d\nE\ne"),
    ("a <<-E <<F\n\tb\n\tE\nc\nF\n/d", None),
    ("a `/b > c`", 'a `kit_run /b  203<<<"$( (kit_target c) >&2)" `'),
    ("a `b \\`c > d\\``", "a `b \\`c > d\\``"),
    ("echo $((a[$i] + $(/b > c)))", 'echo $((a[$i] + $(kit_run /b  203<<<"$( (kit_target c) >&2)" )))'),
    ("{ a; } &> b &", '{ a; }  203<<<"$( (kit_target b) >&2)"  &'),
]


@pytest.mark.parametrize(("text", "tamed"), LINES)
def test_redirections_become_words_and_commands_with_a_path_ask_first(text, tamed):
    found = tame(text).text
    assert tamed is None or found == tamed
    bash = shutil.which("bash")
    assert bash and subprocess.run([bash, "-n", "-c", found], capture_output=True, check=False).stderr == b""


def test_here_documents_are_told_as_they_stand():
    assert tame("a <<'E'\nb\nc\nE\nd <<-F\n\te\n\tF\n").documents == ("b\nc\n", "\te\n")


@pytest.mark.parametrize("end", range(0, 220, 7))
def test_a_script_that_is_cut_anywhere_is_read_to_its_end(end):
    text = 'a "b $(c \'${d}\' `e`)" ${f:-"g"} >h <<I\n$(j)\nI\ncase k in l) m ;; esac; n=(o "p"); [[ q ]]; (( 1 )); '
    text += "function r { s; }; t <(u) &>v; w $'x\\'y' {z}>1 \\"
    tame(text[:end])


def test_an_expression_without_an_end_is_taken_to_the_script_s():
    assert tame("echo $((1 + (2 > $a").text == "echo $((1 + (2 > $a"
