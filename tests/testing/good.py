"""A good backend with its files, and what makes bad ones of it."""

from __future__ import annotations

from pathlib import Path

from madlite import MadMetric, Quantity, TemplateBackend, Variant, step_pattern
from madlite.testing import MACHINES, Flaw, check_backend

TWO = (MACHINES[0], MACHINES[-1])
STEP = r"at=(?P<n>\d{1,9}) tps=(?P<tokens_per_s_per_gpu>[\d,.]{1,20}) loss=(?P<loss>\S{1,20})"
CARD = {"name": "good_model", "backend": "good", "n_gpus": "-1", "args": "--flag 'two words'"}
HEAD = "#!/usr/bin/env bash\nset -euo pipefail\n"
SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
export GOOD_NAME={{ settings.name | sh }}
exec "${MADLITE_PYTHON:-python3}" -m good --steps {{ variant.steps | sh }} --name {{ settings.name | sh }}
{%- for word in args_list %} {{ word | sh }}{% endfor %}

"""
CONFIG = "name = {{ settings.name | toml }}\nlr = {{ settings.lr | toml }}\n"
LOG = "hello\n" + "".join(f"at={n} tps=1,{n:03d}.5 loss={3 / n:.2f}\n" for n in range(1, 13)) + "bye\n"
PAGE = "Settings `name` and `lr`, mode `pretrain`, metrics `tokens_per_s_per_gpu` and `tok_per_s_per_gpu`.\n"


class Good(TemplateBackend):
    name = "good"
    template = "good/run.sh.j2"
    files = {"train.toml": "good/train.toml.j2"}
    step = step_pattern(STEP)
    end_mark = "bye"
    mad_metrics = (MadMetric(metric="tok_per_s_per_gpu", quantity=Quantity.TOKENS_PER_S_PER_GPU),)

    def variants(self, card, machine):
        yield Variant(model="good", precision="BF16", micro_batch=2, steps=20)

    def settings(self, card, variant, machine):
        return {"name": "a name", "lr": 0.001}


def write_files(folder: Path) -> Path:
    """Write templates, log and page of the good backend; return the folder."""
    (folder / "templates/good").mkdir(parents=True)
    (folder / "templates/good/run.sh.j2").write_text(SCRIPT)
    (folder / "templates/good/train.toml.j2").write_text(CONFIG)
    (folder / "templates/run.sh.j2").write_text(SCRIPT)
    (folder / "good.log").write_text(LOG)
    (folder / "good.md").write_text(PAGE)
    return folder


def given(place, count=12, **more) -> dict:
    """Return what the kit gets beside a backend and cards, whose files are in a folder: few plans."""
    usual = {"docs": [place / "good.md"], "templates": [place / "templates"], "installed": False, "machines": TWO}
    return {"logs": {place / "good.log": count}, **usual, "most": 3, **more}


def check(backend, place, *only, cards=(CARD,), **more) -> list[Flaw]:
    """Return the flaws of a backend, given as above."""
    return check_backend(backend, cards, only=only, **given(place, **more))


def broken(**members):
    """Return a backend with other members."""
    return type("Broken", (Good,), members)()


def named(**settings):
    """Return a backend with further settings."""
    return broken(settings=lambda self, card, variant, machine: {"name": "x", "lr": 1.0, **settings})
