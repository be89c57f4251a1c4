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
@pytest.mark.parametrize(("name", "text", "what", "mend"), SCRIPTS)
def test_what_is_wrong_with_a_script_is_said(place, name, text, what, mend):
    (place / "templates/good/run.sh.j2").write_text(HEAD + text)
    flaws = check(Good(), place, name)
    assert [what in flaw.what and mend in flaw.mend for flaw in flaws] == [True] * bool(what), list(map(str, flaws))
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
