#!/usr/bin/env bash
# Builds and runs the tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer.
# `tests/sanitizers.sh short` builds and runs the selection that CI has time for: all tests of C++ code but the MPI jobs
# under the first, and those in which several threads run under the second.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
select_asan=() select_tsan=() asan_targets=(all) tsan_targets=(all)
if [ "${1:-}" = short ]; then
  tsan_targets=({core,kernels,autograd,distributed,nn,data,examples}_tests)
  asan_targets=("${tsan_targets[@]}" {optim,random}_tests fuzz_targets examples/all)
  select_asan=(-LE 'mpi|package')
  select_tsan=(-R '^distributed\.|^data\.(DataLoader|BrokenFolder)|Thread|Rank|SyncBatchNorm|Convert')
fi

cmake --preset asan
cmake --build --preset asan --target "${asan_targets[@]}"
ctest --preset asan -j "$(nproc)" "${select_asan[@]}"

cmake --preset tsan
cmake --build --preset tsan --target "${tsan_targets[@]}"
# ThreadSanitizer cannot see how OpenMP's threads synchronise, so the tests of those threads are left out.
ctest --preset tsan -j "$(nproc)" -E 'ThreadCount|TheCallingThread|^core.Parallel' "${select_tsan[@]}"
