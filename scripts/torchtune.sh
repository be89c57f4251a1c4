#!/usr/bin/env bash
# torchtune.sh VENV FOLDER: make the environment that the tests of torchtune run in, with the torch of another one.
# It is of its own because torchtune 0.6.1 needs a torchao (0.15 at most) that PEFT refuses.
set -euo pipefail
venv=$1 folder=$2
[ -x "$venv/bin/python" ] || {
  echo "error: $venv is no environment" >&2
  echo " hint: make demo makes it" >&2
  exit 4
}
[ -x "$folder/bin/python" ] || "$venv/bin/python" -m venv --without-pip "$folder"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# every folder that the other environment finds packages in, so that its torch is used and nothing is installed twice
"$venv/bin/python" -c 'import sys; print(*[path for path in sys.path if path.endswith("-packages")], sep="\n")' >"$site/outer.pth"
"$venv/bin/python" -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check \
  torchtune==0.6.1 torchao==0.14.1
"$folder/bin/python" -c 'import torchtune.training'
