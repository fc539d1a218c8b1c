#!/usr/bin/env bash
# Compares the machine code (SASS) of the CUDA kernels in a built library with tests/sass/expected.txt: registers, shared
# memory, spills, and how wide loads and stores in loops are. A change is printed as a diff and fails; so does a broken
# rule of tests/sass/table.py. It needs nvcc and a library that was built with it, but no GPU.
#   tests/sass.sh              compares
#   tests/sass.sh --update     accepts the library's kernels as the expected ones
#   tests/sass.sh --all        prints a line for each instantiation and compares nothing
# TUTTI_LIBRARY is the library, build/release/libtutti.a if it is not set. Where cuobjdump and nvdisasm are absent, PyPI's
# packages of them are installed in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
library=${TUTTI_LIBRARY:-build/release/libtutti.a} expected=tests/sass/expected.txt version=13.2.51
skip() { echo "sass: skipped, because $1"; exit 0; }

export PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || skip "nvcc is absent"
command -v python3 >/dev/null || skip "python3 is absent"
[ -e "$library" ] || { echo "sass: $library is absent: build the preset release, or set TUTTI_LIBRARY" >&2; exit 2; }
grep -q '\.cu\.o$' <<<"$(ar t "$library")" || skip "$library was built without CUDA"
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  tools=${XDG_CACHE_HOME:-$HOME/.cache}/tutti/sass-$version
  [ -e "$tools/nvidia/cu13/bin/nvdisasm" ] ||
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --no-deps --target "$tools" "nvidia-cuda-cuobjdump==$version" "nvidia-cuda-nvdisasm==$version" ||
    skip "cuobjdump and nvdisasm are absent and pip cannot install them"
  export PATH=$PATH:$tools/nvidia/cu13/bin
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiler=$(nvcc --version | sed -n 's/.*, V//p')
if [ "${1:-}" = --all ]; then
  python3 tests/sass/table.py "$library" "$compiler" "$work/table" --all || true
  cat "$work/table"
  exit
fi
rules=0
python3 tests/sass/table.py "$library" "$compiler" "$work/table" || rules=1
if [ "${1:-}" = --update ]; then
  cp "$work/table" "$expected"
elif [ "$(head -n 1 "$work/table")" != "$(head -n 1 "$expected")" ]; then
  echo "sass: only the rules were checked, because $expected was made by$(head -n 1 "$expected" | tr -d '#') and not $compiler"
elif ! diff -U 0 "$expected" "$work/table"; then
  echo "sass: the kernels above differ from $expected. If that is meant, run tests/sass.sh --update" >&2
  exit 1
fi
[ "$rules" -eq 0 ] && echo "sass: $(grep -vc '^#' "$work/table") lines as expected, all rules kept"
