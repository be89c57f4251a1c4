"""The kit says which values break out of a script or a file, and which do not."""

from __future__ import annotations

import pytest

from madlite import (
    Finding,
)
from tests.testing.good import HEAD, Good, broken, check

SCRIPTS = [
    ("scripts", "echo $1\n", "shellcheck: Double quote to prevent globbing", "SC2086"),
    ("quoting", "train --name {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ("quoting", 'train --name "{{ settings.name }}"\n', "is run as a command of run.sh", "filter sh"),
    ("quoting", "train --name '{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "# trains {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ("quoting", "cat > x <<EOF\n{{ settings.name }}\nEOF\n", "is run as a command of run.sh", "filter sh"),
    ("quoting", "export NAME={{ settings.name | tojson }}\n", "is run as a command of run.sh", "filter sh"),
    (
        "quoting",
        "if [ -d /nowhere ]; then train {{ settings.name }}; fi\n",
        "is run as a command of run.sh",
        "filter sh",
    ),
    ("quoting", "exit 0\nexec train {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ("quoting", "x={{ settings.name | sh }}\ntrain $x\n", "changes the words of run.sh", "filter sh"),
    (
        "quoting",
        "train {{ settings.name | sh }} | {{ settings.name[:2] | sh }}\n",
        "changes the words of run.sh",
        "filter sh",
    ),
    ("quoting", "cat > x <<'EOF'\nname={{ settings.name }}\nEOF\n", "here-document of run.sh, which a line", "sh }}"),
    (
        "quoting",
        "python3 - <<'EOF'\nprint('{{ settings.name }}')\nEOF\n",
        "stands in a here-document",
        "a word of its own",
    ),
    ("quoting", "cat > x.json <<'EOF'\n{\"name\": {{ settings.name | tojson }}}\nEOF\n", "", ""),
    (
        "quoting",
        "x={{ settings.name | sh }}\npython3 - <<EOF\nprint('$x')\nEOF\n",
        "a part of code that a program of run.sh reads",
        "a word of its own",
    ),
    ("quoting", "python3 - {{ settings.name | sh }} <<'EOF'\nprint(1)\nEOF\n", "", ""),
    (
        "quoting",
        "bash -c {{ ('train ' ~ settings.name) | sh }}\n",
        "a part of code that a program of run.sh reads",
        "a word of its own",
    ),
    ("quoting", "bash -c {{ ('train ' ~ (settings.name | sh)) | sh }}\n", "", ""),
    ("quoting", "echo 'name {{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "printf '%s\\n' '{{ settings.name }}' > settings.txt\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "declare NAME='{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "export NAME='{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "train >'{{ settings.name }}.log'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "/opt/bin/train '{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "set -- train '{{ settings.name }}'\n\"$@\"\n", "changes the words of run.sh", "filter sh"),
    ("quoting", "trap \"rm '{{ settings.name }}'\" EXIT\n", "is run as a command of run.sh", "filter sh"),
    (
        "quoting",
        'x={{ variant.model | sh }}\nn=$((x + 1))\ntrain "$n"\n',
        "keeps run.sh from being run to its end",
        "filter sh",
    ),
    (
        "quoting",
        "printf ' %q' a {{ settings.name | sh }}\necho \"b $(printf ' %q' {{ settings.name | sh }})\"\n",
        "",
        "",
    ),
    (
        "quoting",
        'words=({% for word in settings.name.split() %}{{ word | sh }} {% endfor %})\necho "a ${words[*]}"\n',
        "",
        "",
    ),
    ("quoting", "while true; do train; done\n", "could not be run to its end", "let loops that wait call sleep"),
    (
        "quoting",
        "until [ -f ready ]; do sleep 1; done\ntrain {{ settings.name }}\n",
        "is run as a command",
        "filter sh",
    ),
    ("quoting", ': "${TOKEN:?is not set}"\ntrain {{ settings.name }}\n', "is run as a command of run.sh", "filter sh"),
    (
        "quoting",
        "export PATH=/opt/bin:$PATH\ntrain {{ settings.name }}\n",
        "is run as a command of run.sh",
        "filter sh",
    ),
    (
        "quoting",
        "while true; do nvidia-smi; sleep 5; done &\nmon=$!\ntrap 'kill \"$mon\"' EXIT\n"
        "train {{ settings.name | sh }}\n",
        "",
        "",
    ),
    ("quoting", "train {{ args }}\n", "", ""),
    ("quoting", "train {{ args_list | join(' ') }}\n", "is run as a command of run.sh", "filter sh"),
    ("quoting", "train {% for word in args_list %} {{ word | sh }}{% endfor %}\n", "", ""),
    (
        "quoting",
        "python={{ plan.env.get('MADLITE_PYTHON', 'python3') }}\n\"$python\" -m x\n",
        "is run as a command",
        "filter sh",
    ),
    (
        "quoting",
        "a {{ settings.name | sh }} | b {{ settings.name | sh }} | c\nif ! test x; then d; else e; fi\n",
        "",
        "",
    ),
    ("quoting", "train{% for word in settings.name | words %} {{ word | sh }}{% endfor %}\n", "", ""),
    ("quoting", "train {{ ('--name=' ~ settings.name) | sh }} {{ settings | tojson | sh }}\n", "", ""),
    (
        "quoting",
        "train {{ 7 // (1 - settings.name.count('`') // 2) }}\n",
        "an odd value breaks a template",
        "filter sh",
    ),
]


@pytest.mark.host
@pytest.mark.parametrize(("name", "text", "what", "hint"), SCRIPTS)
def test_what_is_wrong_with_a_script_is_said(place, name, text, what, hint):
    (place / "templates/good/run.sh.j2").write_text(HEAD + text)
    flaws = check(Good(), place, name)
    assert [what in flaw.what and hint in flaw.hint for flaw in flaws] == [True] * bool(what), list(map(str, flaws))
    assert not list(place.rglob("kit_canary*"))


@pytest.mark.host
@pytest.mark.parametrize(
    "text", ["name = '{{ settings.name }}'\n", 'name = "{{ settings.name }}"\n', "# {{ settings.name }}\n"]
)
def test_a_value_that_changes_a_file_is_said(place, text):
    (place / "templates/good/train.toml.j2").write_text(text)
    (flaw,) = check(Good(), place, "quoting")
    assert "setting name of card good_model" in flaw.where and "an odd value changes train.toml" in flaw.what


@pytest.mark.host
def test_a_backend_s_own_check_may_refuse_a_value_that_its_template_cannot_take(place):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "train {{ 7 // (1 - settings.name.count('`') // 2) }}\n")
    strict = broken(check=lambda self, plan: [Finding(message="no", fatal=True)] * ("`" in plan.settings["name"]))
    assert check(strict, place, "quoting") == []
