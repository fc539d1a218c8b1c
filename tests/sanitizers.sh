#!/usr/bin/env bash
# Builds and runs the tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer.
# `tests/sanitizers.sh short` builds and runs the selection that CI has time for: the library's own tests under the first,
# and those of ranks and of loading threads under the second. What it leaves out, the trainer, the MPI jobs and the rest
# of the threads, is run by hand before a release; tests/fuzz.sh has both sanitizers of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
select_asan=() select_tsan=() asan_targets=(all) tsan_targets=(all)
if [ "${1:-}" = short ]; then
  asan_targets=({core,kernels,autograd,distributed,nn,optim,data,random}_tests)
  tsan_targets=({distributed,nn,data}_tests)
  select_asan=(-L '^(core|kernels|autograd|distributed|nn|optim|data|random)$')
  select_tsan=(-R '^distributed\.|^data\.(DataLoader|BrokenFolder)|^nn\..*(Thread|Rank|SyncBatchNorm|Convert)')
fi

cmake --preset asan
cmake --build --preset asan --target "${asan_targets[@]}"
ctest --preset asan -j "$(nproc)" "${select_asan[@]}"

cmake --preset tsan
cmake --build --preset tsan --target "${tsan_targets[@]}"
# ThreadSanitizer cannot see how OpenMP's threads synchronise, so the tests of those threads are left out.
ctest --preset tsan -j "$(nproc)" -E 'ThreadCount|TheCallingThread|^core.Parallel' "${select_tsan[@]}"
