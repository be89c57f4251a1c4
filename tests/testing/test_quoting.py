"""The kit says which values break out of a script or a file, and which do not."""

from __future__ import annotations

import pytest

from madlite import Finding
from tests.rows import each_row
from tests.testing.good import HEAD, Good, broken, check

pytestmark = pytest.mark.host  # whole checks of backends

BARE = "is not quoted in run.sh"
GOOD = [
    "train {{ settings.name | sh }} --name={{ settings.name | sh }}\n",
    'export NAME={{ settings.name | sh }}\ntrain "$NAME"\n',
    "cat > x.json <<'EOF'\n{\"name\": {{ settings.name | tojson }}}\nEOF\n",
    "cat > x.toml <<-'EOF'\n\tname = {{ settings.name | toml }}\n\tEOF\n",
    "cat > x.toml << \"END-1\"\nname = {{ settings.name | toml }}\nEND-1\ncat <<< 'EOF'\n",
    "cat > x.toml <<\\EOF\nname = {{ settings.name | toml }}\nEOF\n",
    "python3 - {{ settings.name | sh }} <<'EOF'\nprint(1)\nEOF\n",
    "bash -c {{ ('train ' ~ (settings.name | sh)) | sh }}\n",
    "train -c {{ settings.name | sh }}\n",
    'echo "name: "{{ settings.name | sh }}\n',
    "train {{ args }}\n",
    "train {% for word in args_list %} {{ word | sh }}{% endfor %}\n",
    "train{% for word in settings.name | words %}\n{{ word | sh }}{% endfor %}\n",
    "train{% for word in settings.name.split() %}\n{{ word | sh }}{% endfor %}\n",
    "train {{ ('--name=' ~ settings.name) | sh }} {{ settings | tojson | sh }} {{ settings.name | toml | sh }}\n",
]
BAD = [
    ("train --name {{ settings.name }}\n", BARE, "filter sh"),
    ('train --name "{{ settings.name }}"\n', BARE, "filter sh"),
    ("train --name '{{ settings.name }}'\n", BARE, "filter sh"),
    ("# trains {{ settings.name }}\n", BARE, "filter sh"),
    ("train {{ settings.name | toml }}\n", BARE, "filter sh"),
    ("train {{ variant.model }}\n", BARE, "filter sh"),
    ("train {{ args_list | join(' ') }}\n", BARE, "filter sh"),
    ("python={{ plan.env.get('MADLITE_PYTHON', 'python3') }}\n\"$python\" -m x\n", BARE, "filter sh"),
    ("cat > x <<EOF\n{{ settings.name }}\nEOF\n", BARE, "filter sh"),
    ("cat > x <<'EOF'\n1\nEOF\ntrain {{ settings.name }}\n", BARE, "filter sh"),
    ("export NAME={{ settings.name | tojson }}\n", "is in double quotes in run.sh", "filter sh"),
    ('train --name "{{ settings.name | sh }}"\n', "is quoted twice in run.sh", "filter sh"),
    ("cat > x <<'EOF'\nname={{ settings.name }}\nEOF\n", "stands in a here-document of run.sh", "a word of its own"),
    ("bash -c {{ ('train ' ~ settings.name) | sh }}\n", "a part of code that a program", "a word of its own"),
    ("train {{ 7 // (1 - settings.name.count('`') // 2) }}\n", "an odd value breaks a template", "filter sh"),
]


@each_row("text", GOOD)
def test_a_value_that_stays_one_word_is_no_flaw(place, text):
    (place / "templates/good/run.sh.j2").write_text(HEAD + text)
    assert list(map(str, check(Good(), place, "quoting"))) == []


@each_row(("text", "what", "hint"), BAD)
def test_a_value_that_breaks_out_of_a_script_is_said(place, text, what, hint):
    (place / "templates/good/run.sh.j2").write_text(HEAD + text)
    (flaw,) = check(Good(), place, "quoting")
    assert what in flaw.what and hint in flaw.hint
    key = "setting model" if "model" in text else "args" if "args" in text else "variable" if "env" in text else ""
    assert flaw.where.startswith(key or "setting name of card good_model on ")


def test_what_shellcheck_says_is_said(place):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "echo $1\n")
    (flaw,) = check(Good(), place, "scripts")
    assert "shellcheck: Double quote to prevent globbing" in flaw.what and "SC2086" in flaw.hint


@each_row("text", ["name = '{{ settings.name }}'\n", 'name = "{{ settings.name }}"\n', "# {{ settings.name }}\n"])
def test_a_value_that_changes_a_file_is_said(place, text):
    (place / "templates/good/train.toml.j2").write_text(text)
    (flaw,) = check(Good(), place, "quoting")
    assert "setting name of card good_model" in flaw.where and "an odd value changes train.toml" in flaw.what


def test_a_backend_s_own_check_may_refuse_a_value_that_its_template_cannot_take(place):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "train {{ 7 // (1 - settings.name.count('`') // 2) }}\n")
    strict = broken(check=lambda self, plan: [Finding(message="no", fatal=True)] * ("`" in plan.settings["name"]))
    assert check(strict, place, "quoting") == []
