#!/usr/bin/env bash
# release.sh BIN: build what is published of a commit into dist/: sdist, checked wheel, notes from CHANGELOG.md, checksums.
# Nothing is uploaded: .github/workflows/release.yml does that for a tag vVERSION.
set -euo pipefail
bin=$(cd "$1" && pwd)
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' madlite/__init__.py)
fail() { echo "error: $1" >&2; echo " hint: $2" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || fail "the working tree has changes that are not committed" "git status"
heading=$(grep -m1 '^## ' CHANGELOG.md)
[[ $heading =~ ^"## $version ("[0-9]{4}-[0-9]{2}-[0-9]{2}")"$ ]] ||
  fail "CHANGELOG.md begins with '$heading'" "write '## $version (YYYY-MM-DD)', the version of madlite/__init__.py and the day"
tag=${GITHUB_REF_NAME:-v$version}
[ "$tag" = "v$version" ] || fail "tag $tag is not version $version" "git tag v$version"
rm -rf dist
"$bin/python" -m build --quiet --outdir dist .
scripts/wheel.sh "$bin" dist/*.whl
awk '/^## /{ if (seen++) exit; next } seen' CHANGELOG.md >dist/NOTES.md
(cd dist && sha256sum ./*.whl ./*.tar.gz >SHA256SUMS)
ls dist
echo "next: git tag v$version && git push origin v$version"
