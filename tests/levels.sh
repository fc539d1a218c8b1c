#!/usr/bin/env bash
# Runs the tests of the CPU kernels at every level of x86-64 processors (core/cpu_level.h), in a build without
# -march=native, and under qemu on processors that lack the higher levels: an instruction of a higher level in code of
# a lower one ends the program there. Arguments go to CMake, such as -DTUTTI_CUDA=OFF.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release -B build/generic -DTUTTI_NATIVE=OFF "$@" > /dev/null
cmake --build build/generic --target kernels_tests
tests=build/generic/tests/kernels_tests
export OMP_NUM_THREADS=2

run() {  # run WHAT COMMAND...: counts a level that this processor lacks as skipped
  local what=$1 log
  shift
  log=$(mktemp)
  if ! "$@" > "$log" 2>&1; then
    grep -v ' OK \| RUN ' "$log" | tail -40
    echo "levels: $what: FAILED"
    exit 1
  fi
  if grep -q 'processor has no' "$log"; then
    echo "levels: $what: skipped, because this processor has no such level"
  else
    echo "levels: $what: $(grep -o '\[  PASSED  \].*' "$log" | tail -1)"
  fi
  rm -f "$log"
}

for level in baseline avx2 avx512 avx512_bf16; do
  run "$level" env TUTTI_MAX_CPU=$level $tests
done
if TUTTI_MAX_CPU=sse9 $tests --gtest_filter='Softmax*' > /dev/null 2>&1; then
  echo "levels: a wrong TUTTI_MAX_CPU was accepted"
  exit 1
fi
if command -v qemu-x86_64 > /dev/null; then
  # oneDNN chooses its own instructions, and the emulator is slow: tests of the families that are compiled for levels.
  filter='-*Convolution*:*Matmul*'
  run "Nehalem (qemu)" env TUTTI_MAX_CPU=baseline qemu-x86_64 -cpu Nehalem $tests --gtest_filter="$filter"
  run "Haswell (qemu)" env TUTTI_MAX_CPU=avx2 qemu-x86_64 -cpu Haswell $tests --gtest_filter="$filter"
else
  echo "levels: qemu: skipped, because there is no qemu-x86_64 (on Debian: apt-get install qemu-user)"
fi
