#!/usr/bin/env bash
# venv.sh PYTHON FOLDER: make the environment the demo and the tests run in, with a torch in it.
# Where PYTHON can import torch, the environment sees PYTHON's packages, so that a ROCm or CUDA build stays in use;
# else pip installs the build that its index offers; PyPI's for Linux on x86-64 brings CUDA.
set -euo pipefail
python=$1 folder=$2
"$python" -c '' 2>/dev/null || {
  echo "error: $python cannot be run" >&2
  echo " hint: make demo PYTHON=python3" >&2
  exit 4
}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "error: $("$python" --version) is too old, madlite needs Python 3.10" >&2
  echo " hint: make demo PYTHON=python3.11" >&2
  exit 4
}
can_make() { "$python" -c 'import venv, ensurepip' 2>/dev/null; }
if ! can_make && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
fi
can_make || {
  echo "error: $python cannot make virtual environments" >&2
  echo " hint: apt-get install python3-venv" >&2
  exit 4
}
if "$python" -c 'import torch' 2>/dev/null; then
  "$python" -m venv --system-site-packages "$folder"
  if ! "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    # PYTHON is itself a virtual environment, whose packages are not the system's: look there too
    site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import sysconfig; print(*{sysconfig.get_path(k) for k in ("purelib", "platlib")}, sep="\n")' >"$site/outer.pth"
  fi
  # hold the build that is there: pip must not put another one over it
  "$python" -c 'import torch; print(f"torch=={torch.__version__}")' >"$folder/constraints.txt"
else
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
  echo 'torch==2.13.0' >"$folder/constraints.txt"
fi
