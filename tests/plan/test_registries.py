"""Names and logins of registries."""

from __future__ import annotations

from madlite.plan.images import login_to, name_in_registry, registry_of
from tests.rows import each_row

HUB = {"dockerhub": {"repository": "org/repo", "username": "u", "password": "hush"}}


@each_row(
    ("registry", "credentials", "environ", "name"),
    [
        ("docker.io", HUB, {}, "org/repo:ci-x"),
        ("dockerhub", {}, {}, "ci-x"),
        ("docker.io", HUB, {"MAD_DOCKERHUB_REPO": "other/repo"}, "other/repo:ci-x"),
        ("docker.io/org", {}, {}, "docker.io/org/ci-x"),
        ("localhost:5000", {}, {"MAD_DOCKERHUB_REPO": "other/repo"}, "localhost:5000/ci-x"),
        ("localhost:5000", {"localhost:5000": {"repository": "team"}}, {}, "localhost:5000/team:ci-x"),
        ("ghcr.io/org/", {"ghcr.io": {"username": "u"}}, {}, "ghcr.io/org/ci-x"),
    ],
)
def test_the_name_in_a_registry(registry, credentials, environ, name):
    assert name_in_registry("ci-x", registry, credentials, environ) == name


def test_a_login_needs_user_and_password_and_the_environments_come_first():
    assert login_to("docker.io", {}, {}) is None
    assert login_to("ghcr.io", {"ghcr.io": {"username": "u"}}, {}) is None
    login = login_to("docker.io/org", HUB, {"MAD_DOCKERHUB_PASSWORD": "other"})
    assert (login.host, login.username, login.password.reveal()) == ("", "u", "other")
    assert login_to("ghcr.io/org", {"ghcr.io": {"username": "u", "password": "p"}}, {}).host == "ghcr.io"
    assert "hush" not in repr(login_to("docker.io", HUB, {}))


@each_row(
    ("ref", "registry"),
    [
        ("ci-x", "dockerhub"),
        ("org/repo:ci-x.ubuntu.amd", "dockerhub"),
        ("ghcr.io/org/x:1", "ghcr.io"),
        ("localhost/x", "localhost"),
        ("host:5000/x", "host:5000"),
    ],
)
def test_the_registry_of_an_image(ref, registry):
    assert registry_of(ref) == registry
