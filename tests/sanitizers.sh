#!/usr/bin/env bash
# Builds and runs the tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer.
# `tests/sanitizers.sh short` runs the selection that CI has time for: all tests but the MPI jobs under the first, and
# those in which several threads run under the second.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
select_asan=() select_tsan=()
if [ "${1:-}" = short ]; then
  select_asan=(-LE mpi)
  select_tsan=(-R '^distributed\.|^data\.(DataLoader|BrokenFolder)|Thread|Rank|SyncBatchNorm|Convert')
fi

cmake --preset asan
cmake --build --preset asan
ctest --preset asan -j "$(nproc)" "${select_asan[@]}"

cmake --preset tsan
cmake --build --preset tsan
# ThreadSanitizer cannot see how OpenMP's threads synchronise, so the tests of those threads are left out.
ctest --preset tsan -j "$(nproc)" -E 'ThreadCount|TheCallingThread|^core.Parallel' "${select_tsan[@]}"
