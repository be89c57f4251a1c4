#!/usr/bin/env bash
# Build a branch of MIOpen ($1, else develop) with the HIP backend, and install it over the one of this ROCm.
# Needs git, cmake and a network, and many cores: a pre-script has ten minutes.
set -euo pipefail
rocm=${ROCM_PATH:-/opt/rocm} branch=${1:-develop}
repository=https://github.com/ROCm/MIOpen.git # the steps are those of its README
for program in git cmake; do
  if ! command -v "$program" >/dev/null; then
    echo "miopen_build_latest: $program is not installed here" >&2
    exit 1
  fi
done

folder=$(mktemp -d "${TMPDIR:-/tmp}/miopen.XXXXXX")
trap 'rm -rf -- "$folder"' EXIT
git clone --quiet --depth 1 --branch "$branch" "$repository" "$folder/source"
echo "miopen_build_latest: $branch is at $(git -C "$folder/source" rev-parse HEAD)"
export CXX=$rocm/llvm/bin/clang++
(cd "$folder/source" && cmake -P install_deps.cmake --minimum --prefix "$folder/dependencies")
cmake -S "$folder/source" -B "$folder/build" -DMIOPEN_BACKEND=HIP -DCMAKE_INSTALL_PREFIX="$rocm" \
  -DCMAKE_PREFIX_PATH="$rocm;$folder/dependencies" -DBUILD_TESTING=OFF
cmake --build "$folder/build" --parallel "$(nproc)"
cmake --install "$folder/build"
