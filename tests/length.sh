#!/usr/bin/env bash
# Checks that no function of the library, the examples and the emulator is longer than 60 lines, and that no line of C++
# or CUDA is longer than 100 columns. ctags tells where functions end; it is installed where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
max_lines=60 max_columns=100
command -v ctags >/dev/null || .ci/setup.sh universal-ctags || {
  echo "length: not checked, because ctags is missing" >&2
  exit 0
}

mapfile -t all < <(git ls-files | grep -E '\.(h|cpp|cu|cuh)$')
mapfile -t own < <(printf '%s\n' "${all[@]}" | grep -E '^(core|kernels|autograd|distributed|nn|optim|data|examples|tests/emulator)/')

columns=$(awk -v max=$max_columns 'length > max { print FILENAME ":" FNR ": " length " columns" }' "${all[@]}")
# ctags prints: name, file, pattern;" kind, then the fields line:N and end:N in either order.
functions=$(ctags -o - --sort=no --languages=C++ --langmap=C++:.h.cpp.cu.cuh --kinds-C++=f --fields=ne "${own[@]}" |
  awk -F'\t' -v max=$max_lines '{
    line = end = 0
    for (i = 4; i <= NF; ++i) {
      if ($i ~ /^line:/) line = substr($i, 6)
      if ($i ~ /^end:/) end = substr($i, 5)
    }
    if (end - line + 1 > max) print $2 ":" line ": " $1 "() has " end - line + 1 " lines"
  }')
if [ -n "$columns$functions" ]; then
  printf '%s\n' ${columns:+"$columns"} ${functions:+"$functions"}
  echo "length: a function has at most $max_lines lines, and a line at most $max_columns columns" >&2
  exit 1
fi
echo "length: no function in ${#own[@]} files is over $max_lines lines, no line in ${#all[@]} files over $max_columns columns"
