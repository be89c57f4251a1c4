"""What is decided about images before and while the engine works on them."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.images import image as docker_pull
from madlite.images.build import build_command, build_with_buildkit, needs_buildkit
from madlite.images.client import pull_problem
from madlite.images.image import base_of, digest
from madlite.model import Cause, Image, Secret
from tests.rows import each_row

GIB = 1 << 30


@each_row(
    ("words", "cause", "told"),
    [
        ("manifest for org/image:tag not found: manifest unknown: manifest unknown", Cause.IMAGE, "no such tag"),
        ("manifest unknown", Cause.IMAGE, "no such tag"),
        (
            "pull access denied for org/image, repository does not exist or may require 'docker login': denied: "
            "requested access to the resource is denied",
            Cause.IMAGE,
            "no such repository, or it needs a login",
        ),
        ("unauthorized: authentication required", Cause.IMAGE, "needs a login"),
        ("toomanyrequests: You have reached your unauthenticated pull rate limit.", Cause.IMAGE, "pull limit"),
        (
            'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 10.0.0.1: no such host',
            Cause.IMAGE,
            "cannot be reached",
        ),
        ("net/http: TLS handshake timeout", Cause.IMAGE, "cannot be reached"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", Cause.IMAGE, "other processors"),
        ("failed to register layer: write /opt/rocm/lib/x.so: no space left on device", Cause.DISK, "disk is full"),
    ],
)
def test_the_engines_words_about_a_pull_become_one_sentence(words, cause, told):
    problem = pull_problem("org/image:tag", words)
    assert problem is not None and problem.cause == cause
    assert told in problem.message and "org/image:tag" in problem.message and problem.hint


def test_unknown_words_are_not_interpreted():
    assert pull_problem("org/image:tag", "something new") is None


def disk(free_bytes: int = 100 * GIB, files: int = 10**7, free_files: int = 10**6) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096, f_files=files, f_favail=free_files)


@each_row(("facts", "told"), [(disk(free_bytes=GIB), "1.0 GiB left"), (disk(free_files=500), "500 inodes left")])
def test_a_pull_is_refused_where_bytes_or_inodes_run_out(monkeypatch, tmp_path, facts, told):
    monkeypatch.setattr(docker_pull.os, "statvfs", lambda path: facts)
    with pytest.raises(RuntimeProblem, match=told) as caught:
        docker_pull.check_disk_space(tmp_path, "rocm/x")
    assert caught.value.cause == Cause.DISK


@each_row("facts", [disk(), disk(files=0, free_files=0)])
def test_a_pull_is_allowed_with_room_or_where_inodes_are_not_counted(monkeypatch, tmp_path, facts):
    monkeypatch.setattr(docker_pull.os, "statvfs", lambda path: facts)
    docker_pull.check_disk_space(tmp_path, "rocm/x")


def test_an_engines_folder_that_is_not_here_is_no_reason_to_refuse(tmp_path):
    docker_pull.check_disk_space(tmp_path / "elsewhere", "rocm/x")


def test_progress_adds_up_the_layers_and_speaks_now_and_then(monkeypatch):
    now_s = iter(range(10_000))
    monkeypatch.setattr(docker_pull.time, "monotonic", lambda: float(next(now_s)))
    lines: list[str] = []
    progress = docker_pull.PullProgress("rocm/x", lines.append)

    def layer(name: str, share: float) -> None:
        detail = {"current": int(share * 5 * GIB), "total": 5 * GIB}
        progress.add({"id": name, "status": "Downloading", "progressDetail": detail})

    for percent in range(0, 101):
        layer("one", percent / 100)
        layer("two", percent / 100)
    assert len(lines) == 20 and lines[0].endswith(" of 10.0 GiB"), lines
    for _ in range(10):
        progress.add({"id": "one", "status": "Pull complete"})
    assert lines[-1] == "pulling rocm/x: unpacking"


def test_the_digest_is_the_repositorys_or_else_the_images_id():
    assert digest({"Id": "sha256:1", "RepoDigests": ["rocm/x@sha256:2"]}) == "sha256:2"
    assert digest({"Id": "sha256:1", "RepoDigests": []}) == "sha256:1"
    two = {"Id": "sha256:1", "RepoDigests": ["host:5000/x@sha256:2", "rocm/x@sha256:3"]}
    assert digest(two, "rocm/x:7.0") == "sha256:3" and digest(two, "host:5000/x") == "sha256:2"


@each_row(
    ("text", "base"),
    [
        ("FROM rocm/x:1\nRUN true\n", "rocm/x:1"),
        ("FROM rocm/x AS a\nfrom --platform=linux/amd64 rocm/y as b\nFROM a\n", "rocm/x"),
        ("ARG IT=rocm/x\nFROM $IT\n", ""),
        ("FROM scratch\n", ""),
        ("# nothing\n", ""),
    ],
)
def test_a_base_that_no_argument_names_is_the_last_from(tmp_path, text, base):
    image = Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile")
    image.dockerfile.write_text(text)
    assert base_of(image) == base
    assert base_of(replace(image, base="named")) == "named"


@each_row(
    "line",
    [
        "# syntax=docker/dockerfile:1",
        "RUN --mount=type=cache,target=/home/me/.cache pip install x",
        "COPY --link a b",
        "RUN <<EOF",
        "COPY <<'EOF' /etc/x",
    ],
)
def test_a_dockerfile_only_buildkit_understands_is_recognised(tmp_path, line):
    image = Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile")
    image.dockerfile.write_text(f"{line}\nFROM x\n" if line.startswith("#") else f"FROM x\n{line}\n")
    assert needs_buildkit(image) == line


@each_row("line", ["COPY --chown=0:0 --from=tools a b", "FROM tools"])
def test_a_named_context_is_for_buildkit_alone(tmp_path, line):
    image = Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile")
    image.dockerfile.write_text(f"FROM x\n{line}\nFROM toolset\nCOPY --from=tools2 a b\n")
    assert needs_buildkit(image) == ""
    assert needs_buildkit(replace(image, contexts={"tools": tmp_path})) == line


def test_a_plain_dockerfile_needs_no_buildkit(tmp_path):
    text = "# CONTEXT {'gpu_vendor': 'AMD'}\nFROM x\nRUN echo $((1<<2)) && cat <<< word\nCOPY --chown=0:0 a b\n"
    image = Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile", contexts={"tools": tmp_path})
    image.dockerfile.write_text(text)
    assert needs_buildkit(image) == ""


def test_the_command_that_builds_is_madengines(tmp_path):
    image = Image(
        ref="ci-x",
        dockerfile=tmp_path / "docker/x.Dockerfile",
        context=tmp_path / "docker",
        build_args={"MAD_SECRETS_X": Secret("hush-hush"), "ARCH": "gfx942"},
        contexts={"tools": tmp_path / "docker/common"},
        no_cache=True,
    )
    assert [word.replace(f"{tmp_path}/", "") for word in build_command(image)] == [
        *("docker", "build", "--no-cache", "--network=host", "--build-context=tools=docker/common", "-t", "ci-x"),
        *("--pull", "-f", "docker/x.Dockerfile", "--build-arg=MAD_SECRETS_X", "--build-arg=ARCH=gfx942", "docker"),
    ]


FAKE_DOCKER = """#!/bin/sh
echo "argv: $*"
echo
echo "environment has it: ${HF_TOKEN:+yes}, $DOCKER_BUILDKIT"
case "$* $NO_BASE" in *--pull*yes) echo "ERROR: failed to resolve source metadata for docker.io/x"; exit 1 ;; esac
[ -z "$FAIL" ] || { echo "$FAIL"; exit 1; }
"""


@pytest.fixture
def buildkit(tmp_path, monkeypatch):
    """A stand-in for docker's command line that says how it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text(FAKE_DOCKER)
    (tools / "docker").chmod(0o755)
    (tmp_path / "Dockerfile").write_text("FROM x\nRUN --mount=type=cache,target=/c true\n")
    args = {"HF_TOKEN": Secret("hf_verysecret"), "ARCH": "gfx942"}
    image = Image(ref="ci-tiny", dockerfile=tmp_path / "Dockerfile", build_args=args)

    def build(say=lambda line: None, **environ: str) -> str:
        lines: list[str] = []

        def take(line: str) -> None:
            lines.append(line)
            say(line)

        note = build_with_buildkit(image, {"PATH": f"{tools}:/usr/bin:/bin", **environ}, take)
        return "\n".join([*lines, note])

    return build


def test_buildkit_gets_secret_arguments_by_its_environment_only(buildkit):
    said = buildkit()
    assert "hf_verysecret" not in said and "environment has it: yes, 1" in said
    assert "--build-arg=ARCH=gfx942" in said and "--build-arg=HF_TOKEN" in said and "--network=host" in said


def test_a_missing_buildx_is_told_with_the_line_that_needs_it(buildkit):
    with pytest.raises(RuntimeProblem, match="buildx plugin is not installed") as caught:
        buildkit(FAIL="ERROR: BuildKit is enabled but the buildx component is missing or broken.")
    assert "RUN --mount=type=cache" in caught.value.message and caught.value.cause == Cause.BUILD


STAND_IN_BUILDX = """#!/bin/sh
# docker and its buildx: what is asked of it, what the context has, and a Dockerfile's COPY --from=NAME, carried out
[ -z "$NO_BUILDX" ] || { echo "$NO_BUILDX"; exit 1; }
[ "$1" = build ] && shift && echo "argv: $*"
while [ $# -gt 1 ]; do
  case $1 in --build-context=*) pair=${1#--build-context=} ;; -f) file=$2 ;; esac
  shift
done
set -- $(sed -n "s/^COPY --from=${pair%%=*} //p" "$file")
[ -f "${pair#*=}/$1" ] || { echo "ERROR: \\"/$1\\": not found"; exit 1; }
echo "copied $(cat "${pair#*=}/$1")"
"""
WITHOUT_BUILDX = [
    "ERROR: BuildKit is enabled but the buildx component is missing or broken.",
    "docker: unknown command: docker buildx",
    "unknown flag: --build-context",
]


@pytest.fixture
def with_tools(tmp_path):
    """Build with a stand-in for `docker buildx` a Dockerfile that copies from the context `tools` of a folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(STAND_IN_BUILDX)
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "docker").mkdir()
    dockerfile = tmp_path / "docker/x.Dockerfile"
    dockerfile.write_text("FROM x\nRUN --mount=type=cache,target=/c true\nCOPY --from=tools setup.sh /opt/\n")

    def build(folder: str, **environ: str) -> list[str]:
        (tmp_path / folder).mkdir(parents=True)
        contexts = {"tools": tmp_path / folder}
        image = Image(ref="ci-x", dockerfile=dockerfile, context=tmp_path / "docker", contexts=contexts)
        if "empty" not in folder:
            (tmp_path / folder / "setup.sh").write_text(f"that of {folder}")
        lines: list[str] = []
        build_with_buildkit(image, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **environ}, lines.append)
        return [line.replace(f"{tmp_path}/", "") for line in lines]

    return build


@pytest.mark.parametrize("folder", ["docker/common", "tools"])
def test_a_copy_from_tools_gets_the_folder(with_tools, folder):
    lines = with_tools(folder)
    argv = f"argv: --network=host --build-context=tools={folder} -t ci-x --pull -f "
    assert (
        lines[1].startswith(argv)
        and lines[1].endswith("/x.Dockerfile docker")
        and lines[-1] == f"copied that of {folder}"
    )


def test_a_copy_from_tools_of_what_is_not_there_is_the_cause(with_tools):
    with pytest.raises(RuntimeProblem, match=r'"/setup\.sh": not found') as caught:
        with_tools("empty")
    assert "--build-context=tools=" in caught.value.hint


@pytest.mark.parametrize("said", WITHOUT_BUILDX)
def test_without_buildx_the_line_that_needs_it_is_the_cause(with_tools, said):
    with pytest.raises(RuntimeProblem, match="docker's buildx plugin is not installed") as caught:
        with_tools("tools", NO_BUILDX=said)
    assert (
        "needs BuildKit ('RUN --mount=type=cache,target=/c true')" in caught.value.message
        and "docker-buildx" in caught.value.hint
    )


def test_a_step_that_fails_under_buildkit_is_told(buildkit):
    with pytest.raises(RuntimeProblem, match="exit code: 9") as caught:
        buildkit(FAIL='ERROR: failed to solve: process "/bin/sh -c exit 9" did not complete successfully: exit code: 9')
    assert caught.value.cause == Cause.BUILD


def test_a_machine_without_dockers_command_line_is_told(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM x\nRUN --mount=type=cache,target=/c true\n")
    image = Image(ref="ci-tiny", dockerfile=tmp_path / "Dockerfile")
    with pytest.raises(RuntimeProblem, match="command line cannot be started"):
        build_with_buildkit(image, {"PATH": str(tmp_path)}, lambda line: None)


def test_buildkit_takes_the_base_that_is_here_where_it_cannot_be_refreshed(buildkit):
    said = buildkit(NO_BASE="yes")
    assert "trying the one that is here" in said and said.count("argv: build") == 2
    assert said.splitlines()[-1].startswith("the base image was not refreshed: ") and "docker.io/x" in said


def test_an_interrupt_ends_docker_s_command_line(buildkit, monkeypatch):
    ended = []
    monkeypatch.setattr("madlite.images.build.kill_group", lambda leader, number: ended.append((leader, number)))

    def interrupt(line: str) -> None:
        if line.startswith("argv"):  # docker's own first line
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buildkit(interrupt)
    assert [number for _, number in ended] == [signal.SIGTERM]
