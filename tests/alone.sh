#!/usr/bin/env bash
# Checks that each source of the library and the examples, and each of their headers, compiles by itself: the presets
# compile each folder as one unit, where a file finds what its neighbours include. Only the syntax is checked, with CUDA's
# host side where nvcc is found; CUDA's own files are never part of a unit. A header that is the first include of a source
# is checked with that source. Warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
build=build/alone
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DTUTTI_NATIVE=OFF -DTUTTI_CUDA_EMULATOR=OFF -DTUTTI_WERROR=ON \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$PWD/tests/syntax_only.sh" >/dev/null
mapfile -t files < <(ninja -C $build -t targets all |
  sed -nE 's/^((CMakeFiles\/tutti(_cuda)?\.dir|examples\/CMakeFiles\/train_resnet[a-z_]*\.dir|tests\/CMakeFiles\/headers_alone\.dir)\/.*\.cpp\.o):.*/\1/p')
ninja -C $build -k 0 --quiet "${files[@]}" || { echo "alone: let each of these files include what it uses" >&2; exit 1; }
echo "alone: ${#files[@]} sources and headers compile by themselves"
