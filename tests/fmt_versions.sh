#!/usr/bin/env bash
# Checks that the library, the examples and the tests of core compile with other versions of fmt than the system's. Each
# argument is a folder that holds fmt/format.h; a checkout of github.com/fmtlib/fmt has one named include. Only syntax
# and types are checked: nothing is linked. TUTTI_JOBS says how many compilers run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: tests/fmt_versions.sh FOLDER..." >&2; exit 2; }
cmake --preset release -B build/fmt -DTUTTI_CUDA=OFF -DTUTTI_CUDA_EMULATOR=OFF > /dev/null
commands=$(sed -n 's/^ *"command": "\(.*\)",$/\1/p' build/fmt/compile_commands.json |
           grep -E 'CMakeFiles/(tutti|train_resnet|train_resnet_lib|core_tests)\.dir/' |
           sed 's/ -o [^ ]* / -fsyntax-only -Werror -DFMT_HEADER_ONLY=1 -isystem "$FMT" /; s/\\"/"/g; s/\\\\/\\/g')
[ -n "$commands" ] || { echo "fmt_versions: build/fmt/compile_commands.json has no commands" >&2; exit 1; }

for FMT in "$@"; do
  export FMT
  [ -e "$FMT/fmt/format.h" ] || { echo "fmt_versions: expected fmt/format.h in $FMT, found none" >&2; exit 2; }
  version=$(cat "$FMT"/fmt/*.h | sed -n 's/^#define FMT_VERSION \([0-9]*\)$/\1/p')  # in core.h, later in base.h
  (cd build/fmt && tr '\n' '\0' <<<"$commands" | xargs -0 -P "${TUTTI_JOBS:-$(nproc)}" -I{} sh -c '{}') ||
    { echo "fmt_versions: $version ($FMT) FAILED"; exit 1; }
  echo "fmt_versions: $version ($FMT) compiles"
done
