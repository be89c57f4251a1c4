"""Which of madlite's variables a script asks for, and which it only speaks of."""

from __future__ import annotations

from madlite_plugins.torchrun.variables import Named, named_in, parsed
from tests.rows import each_row

WORDS = ("MODE", "PRECISION", "SEQ_LEN", "STEPS")


def asked(text: str, suffix: str = ".py") -> set[str]:
    """Return what a file of this text asks for."""
    found = named_in(text, parsed(text, suffix))
    return {word for word in WORDS if found.has(word)}


@each_row(
    "text",
    [
        "os.environ['MADLITE_PRECISION']",
        'os.environ.get("MADLITE_PRECISION", "bf16")',
        "os.getenv('MADLITE_PRECISION')",
        "os.environb[b'MADLITE_PRECISION']",
        "os.environ.setdefault('MADLITE_PRECISION', 'bf16')",
        "from os import environ as e\nprecision = e['MADLITE_' 'PRECISION']",
        "NAMES = {'precision': 'MADLITE_PRECISION'}\nread = {key: os.environ[name] for key, name in NAMES.items()}",
        "for name in 'MADLITE_PRECISION MADLITE_WIDTH'.split():\n    take(os.environ[name])",
        "click.option('--precision', envvar='MADLITE_PRECISION')",
        "os.path.expandvars('a run in $MADLITE_PRECISION')",
        "subprocess.run('python train.py --precision ${MADLITE_PRECISION:-bf16} --lr 1', shell=True)",
        "OmegaConf.create({'precision': '${oc.env:MADLITE_PRECISION,bf16}'})",
        "f\"{os.environ['MADLITE_PRECISION']:>8}\"",
        "'a %s b' % os.environ['MADLITE_PRECISION']",
        "'{}'.format(os.environ['MADLITE_PRECISION'])",
        "os.environ['X'] = os.environ['MADLITE_PRECISION']",
        "os.environ['MADLITE_PRECISION'] = os.environ.get('MADLITE_PRECISION', 'bf16')",
        "'''Reads nothing.'''\ndef f():\n    'Nor this.'\n    return os.environ['MADLITE_PRECISION']",
        "def told(name):\n    return os.environ[f'MADLITE_{name}']\ntold('PRECISION')",
        "def told(**names):\n    return [os.environ['MADLITE_' + one.upper()] for one in names]\ntold(precision=None)",
        "@dataclass\nclass Sizes:\n    precision: str\n[os.environ['MADLITE_%s' % one] for one in fields(Sizes)]",
        "parser.add_argument('--precision')\n['MADLITE_{}'.format(one) for one in vars(args)]",
    ],
)
def test_python_that_asks_for_a_variable(text):
    assert asked(text) == {"PRECISION"}


@each_row(
    "text",
    [
        "# MADLITE_PRECISION is not read here",
        "x = 1  # os.environ['MADLITE_PRECISION']",
        "'''MADLITE_PRECISION'''",
        "def f():\n    '''Take no $MADLITE_PRECISION.'''",
        "class A:\n    'MADLITE_PRECISION'\n    x = 1",
        "'os.environ[\"MADLITE_PRECISION\"]'",
        "print('MADLITE_PRECISION is not read here')",
        "raise ValueError(f'MADLITE_PRECISION of {x} is unknown')",
        "print(f'MADLITE_PRECISION={precision}')",
        "os.environ['MADLITE_PRECISION'] = 'bf16'",
        "del os.environ['MADLITE_PRECISION']",
        "MADLITE_PRECISION = 'bf16'",
        "os.environ['MADLITE_PRECISIONS'], os.environ['MADLITE_PRECISION_OF_WEIGHTS']",
        "os.environ['MY_MADLITE_PRECISION'], os.environ['MADLITE_PRECISIONs']",
        "os.environ['MADLITE_MODEL'], os.environ['MADLITE_STEPS_PER_EPOCH'], os.environ['MADLITE_SEQ_LENGTH']",
        "# precision\ndef told(name):\n    return os.environ[f'MADLITE_{name}']\ntold('WIDTH')",
        "print('all MADLITE_ variables are ignored')",
        "precision = 'bf16'\nprint('in the precision of today')\nos.environ[f'MADLITE_{name}']",
    ],
)
def test_python_that_only_speaks_of_one(text):
    assert asked(text) == set()


@each_row(
    "text",
    [
        "{k[8:]: v for k, v in os.environ.items() if k.startswith('MADLITE_')}",
        "class Settings(BaseSettings):\n    model_config = SettingsConfigDict(env_prefix='MADLITE_')",
    ],
)
def test_python_that_takes_all_of_them(text):
    assert asked(text) == set(WORDS)


@each_row(
    ("text", "names"),
    [
        ('python train.py --precision "$MADLITE_PRECISION"', {"PRECISION"}),
        ('precision="${MADLITE_PRECISION:-bf16}"  # or what it is told', {"PRECISION"}),
        ("MADLITE_PRECISION=${MADLITE_PRECISION:-bf16}", {"PRECISION"}),
        ("if [ -v MADLITE_PRECISION ]; then x=$(printenv MADLITE_PRECISION); fi", {"PRECISION"}),
        ('for name in MADLITE_MODE MADLITE_STEPS; do args+=("${!name}"); done', {"MODE", "STEPS"}),
        ('echo "step # of $MADLITE_STEPS"', {"STEPS"}),
        ("echo $# ${#MADLITE_STEPS}", {"STEPS"}),
        ("told() { local name=MADLITE_$1; echo ${!name}; }\ntold STEPS", {"STEPS"}),
        ("env | grep ^MADLITE_ > told", set(WORDS)),
        ("# MADLITE_PRECISION is not read here", set()),
        ("run  # with $MADLITE_PRECISION\nrun;# $MADLITE_MODE", set()),
        ("echo 'MADLITE_PRECISION is not read here'", set()),
        ("export MADLITE_PRECISION=bf16", set()),
        ("use $MADLITE_MODEL ${MADLITE_STEPS_PER_EPOCH} $MADLITE_MODEs", set()),
    ],
)
@each_row("file", [".sh", "", ".txt"])
def test_what_a_shell_script_asks_for(text, names, file):
    assert asked(text if file == ".sh" else f"#!/bin/bash\n{text}", file) == names


def test_what_is_python_is_told_by_the_file_and_else_by_the_text():
    comment, read = "x = 1 # MADLITE_MODE\n'MADLITE_STEPS'\n", "os.environ['MADLITE_SEQ_LEN']"
    first = "#!/usr/bin/env python3\n"
    for text, suffix in ((comment, ".py"), (comment, ""), (first + comment, ".sh"), (f"#!/bin/bash\n{comment}", ".py")):
        assert asked(text + read, suffix) == {"SEQ_LEN"}
    assert asked(f"def broken(:  # MADLITE_MODE\n  {read}") == {"SEQ_LEN"}
    assert asked(f"x = ({'(' * 5000}\n{read}") == {"SEQ_LEN"}


def test_a_part_of_a_name_may_stand_in_another_module():
    one, other = (named_in(text, parsed(text, ".py")) for text in ("take(f'MADLITE_{name}')", "NAMES = ('MODE',)"))
    assert not one.has("MODE") and not other.has("MODE") and (one | other).has("MODE")
    assert not (one | other).has("STEPS") and not Named().has("MODE")
