"""Which values break out of a script in what bash makes of it, and which do not."""

from __future__ import annotations

import pytest

from madlite.testing import Subject, run_check
from tests.kit.quoting import check_quoting
from tests.rows import each_row
from tests.testing.good import CARD, HEAD, Good, given, write_files

SCRIPTS = [
    ("train --name {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ('train --name "{{ settings.name }}"\n', "is run as a command of run.sh", "filter sh"),
    ("train --name '{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("# trains {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ("cat > x <<EOF\n{{ settings.name }}\nEOF\n", "is run as a command of run.sh", "filter sh"),
    ("export NAME={{ settings.name | tojson }}\n", "is run as a command of run.sh", "filter sh"),
    ("if [ -d /nowhere ]; then train {{ settings.name }}; fi\n", "is run as a command of run.sh", "filter sh"),
    ("exit 0\nexec train {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    ("x={{ settings.name | sh }}\ntrain $x\n", "changes the words of run.sh", "filter sh"),
    ("train {{ settings.name | sh }} | {{ settings.name[:2] | sh }}\n", "changes the words of run.sh", "filter sh"),
    ("cat > x <<'EOF'\nname={{ settings.name }}\nEOF\n", "here-document of run.sh, which a line", "sh }}"),
    ("python3 - <<'EOF'\nprint('{{ settings.name }}')\nEOF\n", "stands in a here-document", "a word of its own"),
    ("cat > x.json <<'EOF'\n{\"name\": {{ settings.name | tojson }}}\nEOF\n", "", ""),
    (
        "x={{ settings.name | sh }}\npython3 - <<EOF\nprint('$x')\nEOF\n",
        "a part of code that a program of run.sh reads",
        "a word of its own",
    ),
    ("python3 - {{ settings.name | sh }} <<'EOF'\nprint(1)\nEOF\n", "", ""),
    (
        "bash -c {{ ('train ' ~ settings.name) | sh }}\n",
        "a part of code that a program of run.sh reads",
        "a word of its own",
    ),
    ("bash -c {{ ('train ' ~ (settings.name | sh)) | sh }}\n", "", ""),
    ("echo 'name {{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("printf '%s\\n' '{{ settings.name }}' > settings.txt\n", "changes the words of run.sh", "filter sh"),
    ("declare NAME='{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("export NAME='{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("train >'{{ settings.name }}.log'\n", "changes the words of run.sh", "filter sh"),
    ("/opt/bin/train '{{ settings.name }}'\n", "changes the words of run.sh", "filter sh"),
    ("set -- train '{{ settings.name }}'\n\"$@\"\n", "changes the words of run.sh", "filter sh"),
    ("trap \"rm '{{ settings.name }}'\" EXIT\n", "is run as a command of run.sh", "filter sh"),
    ('x={{ variant.model | sh }}\nn=$((x + 1))\ntrain "$n"\n', "keeps run.sh from being run to its end", "filter sh"),
    ("printf ' %q' a {{ settings.name | sh }}\necho \"b $(printf ' %q' {{ settings.name | sh }})\"\n", "", ""),
    ('words=({% for word in settings.name.split() %}{{ word | sh }} {% endfor %})\necho "a ${words[*]}"\n', "", ""),
    ("while true; do train; done\n", "could not be run to its end", "let loops that wait call sleep"),
    ("until [ -f ready ]; do sleep 1; done\ntrain {{ settings.name }}\n", "is run as a command", "filter sh"),
    (': "${TOKEN:?is not set}"\ntrain {{ settings.name }}\n', "is run as a command of run.sh", "filter sh"),
    ("export PATH=/opt/bin:$PATH\ntrain {{ settings.name }}\n", "is run as a command of run.sh", "filter sh"),
    (
        "while true; do nvidia-smi; sleep 5; done &\nmon=$!\ntrap 'kill \"$mon\"' EXIT\n"
        "train {{ settings.name | sh }}\n",
        "",
        "",
    ),
    ("train {{ args }}\n", "", ""),
    ("train {{ args_list | join(' ') }}\n", "is run as a command of run.sh", "filter sh"),
    ("train {% for word in args_list %} {{ word | sh }}{% endfor %}\n", "", ""),
    ("python={{ plan.env.get('MADLITE_PYTHON', 'python3') }}\n\"$python\" -m x\n", "is run as a command", "filter sh"),
    ("a {{ settings.name | sh }} | b {{ settings.name | sh }} | c\nif ! test x; then d; else e; fi\n", "", ""),
    ("train{% for word in settings.name | words %} {{ word | sh }}{% endfor %}\n", "", ""),
    ("train {{ ('--name=' ~ settings.name) | sh }} {{ settings | tojson | sh }}\n", "", ""),
    ("train {{ 7 // (1 - settings.name.count('`') // 2) }}\n", "an odd value breaks a template", "filter sh"),
]


@pytest.mark.host
@pytest.mark.timeout(900)
@each_row(("text", "what", "hint"), SCRIPTS)
def test_what_is_wrong_with_a_script_is_said(tmp_path, text, what, hint):
    place = write_files(tmp_path)
    (place / "templates/good/run.sh.j2").write_text(HEAD + text)
    subject = Subject(Good(), [CARD], **given(place))
    flaws = run_check("quoting", subject, {"quoting": check_quoting})
    assert [what in flaw.what and hint in flaw.hint for flaw in flaws] == [True] * bool(what), list(map(str, flaws))
    assert not list(place.rglob("kit_canary*"))
    if not what:
        assert run_check("quoting", subject) == [], "what every backend is checked for finds no more"


@pytest.mark.host
def test_without_bash_it_is_a_flaw(place, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    assert len(run_check("quoting", Subject(Good(), [CARD], **given(place)), {"quoting": check_quoting})) == 1
