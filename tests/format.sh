#!/usr/bin/env bash
# Checks that every C++ and CUDA source has the layout that .clang-format describes; `tests/format.sh --fix` rewrites
# those that have not. Versions of clang-format differ in details, so the script uses version 14 (Debian 12's) only and
# installs it where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format-14 >/dev/null || .ci/setup.sh clang-format-14 || {
  echo "format: not checked, because clang-format-14 is missing" >&2
  exit 0
}
mapfile -t sources < <(git ls-files | grep -E '\.(h|cpp|cu|cuh)$')
if [ "${1:-}" = --fix ]; then
  clang-format-14 -i "${sources[@]}"
else
  clang-format-14 --dry-run -Werror "${sources[@]}" || { echo "format: the files above have another layout; run tests/format.sh --fix" >&2; exit 1; }
  echo "format: ${#sources[@]} files have the layout of .clang-format"
fi
