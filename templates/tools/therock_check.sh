#!/usr/bin/env bash
# therock_check.sh: say whether the ROCm here is a build of TheRock (https://github.com/ROCm/TheRock); never fails.
# TheRock marks what it builds by share/therock/therock_manifest.json, in a folder or in the package _rocm_sdk_core.
set -u
found=0

# Print the value of a text key of a JSON file with one key a line; nothing where it has none.
text_of() {
  sed -n 's/.*"'"$1"'"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' "$2" | head -n 1
}

check() {
  local root=$1 by=$2 manifest=$1/share/therock/therock_manifest.json
  [ -r "$manifest" ] || return 0
  found=1
  echo "therock_check: TheRock ROCm in $root ($by), commit $(text_of the_rock_commit "$manifest" | grep . || echo unknown)"
}

seen=:
look() {
  local root
  root=$(cd -P -- "${1:-/nonexistent}" 2>/dev/null && pwd) || return 0
  case $seen in *:"$root":*) return 0 ;; esac
  seen=$seen$root:
  check "$root" "$2"
}

for name in ROCM_PATH ROCM_HOME HIP_PATH; do
  look "${!name-}" "\$$name"
done
for root in /opt/rocm /opt/rocm-* /usr/local/rocm "${HOME-}/rocm" "${HOME-}/therock" "${HOME-}/.local/rocm"; do
  look "$root" "folder"
done
if command -v rocm-sdk >/dev/null; then
  look "$(rocm-sdk path --root 2>/dev/null)" "rocm-sdk"
fi
if command -v python3 >/dev/null; then
  look "$(python3 -c '
import importlib.util
spec = importlib.util.find_spec("_rocm_sdk_core")
print(next(iter(spec.submodule_search_locations), "") if spec else "")' 2>/dev/null)" "package _rocm_sdk_core"
fi
[ "$found" = 1 ] || echo "therock_check: no TheRock ROCm is installed here"
exit 0
