#!/usr/bin/env bash
# Checks that .clang-format decides the layout of every C++ and CUDA source; `tests/format.sh --fix` rewrites them.
# Versions of clang-format differ in details, so only version 14 (Debian 12's) is asked; it is installed where missing.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format-14 >/dev/null; then
  if [ "$(id -u)" -ne 0 ] || ! apt-cache show clang-format-14 >/dev/null 2>&1; then
    echo "format: not checked, because clang-format-14 is missing; install it to check the layout" >&2
    exit 0
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang-format-14 >/dev/null
fi
mapfile -t sources < <(git ls-files | grep -E '\.(h|cpp|cu|cuh)$')
if [ "${1:-}" = --fix ]; then
  clang-format-14 -i "${sources[@]}"
else
  clang-format-14 --dry-run -Werror "${sources[@]}" || { echo "format: run tests/format.sh --fix" >&2; exit 1; }
  echo "format: ${#sources[@]} files are as .clang-format wants them"
fi
