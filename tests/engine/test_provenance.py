from __future__ import annotations

import hashlib
import time
from pathlib import Path

from msgspec.structs import replace

import madlite
from madlite.backends.loader import Plugins
from madlite.model import Gpu, Machine, Provenance, RunPlan, Secret
from madlite.plan.plan_file import Rendered
from madlite.plan.submission import PlannedRun
from madlite.platforms.host.runtime import HostRuntime
from madlite.run.instrumentation import NAMES, PREFIXES, gpu_facts, make_provenance
from tests.factories import make_plan
from tests.rows import each_row

GIB = 1 << 30


def made(
    plan: RunPlan,
    inside: Provenance | None = None,
    files: tuple[Rendered, ...] = (),
    labels: dict[str, str] | None = None,
) -> Provenance:
    plugins = Plugins()
    plugins.register("extra", object(), "madlite-extra", "3.1")
    one = PlannedRun(plan=plan, backends=(), files=files, runtime=HostRuntime({}))
    return make_provenance(one, plugins, labels or {}, inside or Provenance(), {"vbios": "9"})


def test_versions_of_madlite_and_of_each_plugin_s_distribution(tmp_path: Path) -> None:
    assert made(make_plan(tmp_path)).versions == {"madlite": madlite.__version__, "madlite-extra": "3.1"}


def test_a_plugin_that_came_with_no_distribution_is_told_all_the_same(tmp_path: Path) -> None:
    plugins = Plugins()
    plugins.register("local", object(), "unknown", "")  # as the loader names it
    one = PlannedRun(plan=make_plan(tmp_path), backends=(), files=(), runtime=HostRuntime({}))
    told = make_provenance(one, plugins, {}, Provenance(), {}).versions
    assert told == {"madlite": madlite.__version__, "plugin local": "unknown"}


def test_the_rendered_script_is_the_one_that_ran(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, id="r1")
    texts = {"c.toml": b"x", "run.sh": b"#!/bin/bash\n"}
    files = [Rendered(path=name, data=data, template=Path("x")) for name, data in texts.items()]
    found = made(plan, files=tuple(files))
    assert found.script == "madlite_runs/r1/run.sh"
    assert found.script_sha256 == hashlib.sha256(b"#!/bin/bash\n").hexdigest()


@each_row(("scripts", "name"), [("scripts/x", "scripts/x/run.sh"), ("scripts/x/run.sh",) * 2])
def test_a_card_s_own_script(tmp_path: Path, scripts: str, name: str) -> None:
    plan = make_plan(tmp_path)
    (tmp_path / "scripts/x").mkdir(parents=True)
    (tmp_path / "scripts/x/run.sh").write_bytes(b"echo 1\n")
    found = made(replace(plan, card=replace(plan.card, scripts=scripts)))
    assert (found.script, found.script_sha256) == (name, hashlib.sha256(b"echo 1\n").hexdigest())


@each_row("scripts", ["", "nowhere/run.sh", "x" * 300, "a\0b"])
def test_a_script_that_cannot_be_read(tmp_path: Path, scripts: str) -> None:
    plan = make_plan(tmp_path)
    found = made(replace(plan, card=replace(plan.card, scripts=scripts)))
    assert (found.script, found.script_sha256) == ("", "")


def test_secrets_are_masked_by_name_and_in_urls(tmp_path: Path) -> None:
    env = {
        "MAD_SECRETS_HFTOKEN": "hf_abcdefgh",
        "HF_HUB_TOKEN": "hf_ijklmnop",
        "NCCL_DEBUG": "INFO",
        "MAD_PROXY": "http://me:geheim@proxy:80/x",
        "MAD_LONG": "y" * 900,
        "MAD_LIST": "y," * 900,
        "MAD_MIRROR": "http://me:ge@heim@mirror/x pg://me:ge/heim@db/x http://cache:3128/a@b",
        "MAD_OTHER": "http://me:ge/he@im@db/x redis://:ge/heim@db:6379/0 http://[::1]:3128/a@b",
    }
    labels = {"org.opencontainers.image.revision": "abc", "build.password": "geheim1", "n": "1"}
    found = made(make_plan(tmp_path), Provenance(environment=env), labels=labels)
    assert found.environment == {
        "HF_HUB_TOKEN": "***",
        "MAD_LIST": "y," * 250,
        "MAD_LONG": "***",
        "MAD_MIRROR": "http://***@mirror/x pg://***@db/x http://cache:3128/a@b",
        "MAD_OTHER": "http://***@db/x redis://***@db:6379/0 http://[::1]:3128/a@b",
        "MAD_PROXY": "http://***@proxy:80/x",
        "MAD_SECRETS_HFTOKEN": "***",
        "NCCL_DEBUG": "INFO",
    }
    assert found.labels == {"org.opencontainers.image.revision": "abc", "build.password": "***", "n": "1"}


def test_a_label_of_any_length_is_masked_in_time(tmp_path: Path) -> None:
    before_s = time.process_time()
    labels = made(make_plan(tmp_path), labels={"a": "x://b:c" * 30_000, "b": "x://b:c/d@e " * 20_000}).labels
    assert time.process_time() - before_s < 10, "a look at the rest of it from each place takes minutes"
    assert labels["b"] == "x://***@e " * 50


def test_of_a_run_that_nothing_was_asked_of_the_plan_s_environment_is_told(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG": "WARN", "MAD_SECRETS_X": Secret("geheim1"), "OTHER": "1", "HF_HOME": "/c"}
    assert made(make_plan(tmp_path, env=env)).environment == {
        "HF_HOME": "/c",
        "MAD_SECRETS_X": "***",
        "NCCL_DEBUG": "WARN",
    }


def test_what_was_found_inside_is_passed_on(tmp_path: Path) -> None:
    inside = Provenance(
        inside={"os": "Some Linux"}, packages={"torch": "2.8"}, repositories={"/w": "a" * 40}, notes=("no git",)
    )
    found = made(make_plan(tmp_path), inside)
    assert (found.inside, found.packages, found.repositories, found.notes) == (
        {"os": "Some Linux"},
        {"torch": "2.8"},
        {"/w": "a" * 40},
        ("no git",),
    )
    assert found.host["kernel"] and found.gpu == {}


def test_the_gpus_of_the_run_alone() -> None:
    gpus = (Gpu(index=0, memory_bytes=192 * GIB), Gpu(index=1, memory_bytes=192 * GIB), Gpu(index=2))
    machine = Machine(
        vendor="AMD", gpus=gpus, architecture="gfx942", product="MI300X", driver_version="6.12", rocm_version="6.4"
    )
    assert gpu_facts(machine, (0, 1), {"vbios": "9", "power_limit_w": "750"}) == {
        "count": "2",
        "product": "MI300X",
        "architecture": "gfx942",
        "memory_gib": "192.0",
        "driver": "6.12",
        "rocm": "6.4",
        "vbios": "9",
        "power_limit_w": "750",
    }
    assert "memory_gib" not in gpu_facts(machine, (2,), {})
    assert gpu_facts(machine, (), {"vbios": "9"}) == {}


def test_the_page_names_every_variable_that_is_kept() -> None:
    page = (Path(__file__).parents[2] / "docs/provenance.md").read_text()
    assert [name for name in (*PREFIXES, *NAMES) if f"`{name}`" not in page] == []
