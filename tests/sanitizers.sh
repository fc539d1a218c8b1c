#!/usr/bin/env bash
# The tests under sanitizers: address and undefined behaviour, then threads. `tests/sanitizers.sh short` is the selection
# that CI has time for: all but the MPI jobs under the first, those in which threads meet under the second.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
select_asan=() select_tsan=()
if [ "${1:-}" = short ]; then
  select_asan=(-LE mpi)
  select_tsan=(-R '^distributed\.|Thread|Rank|SyncBatchNorm|Convert')
fi

cmake --preset asan
cmake --build --preset asan
ctest --preset asan -j "$(nproc)" "${select_asan[@]}"

cmake --preset tsan
cmake --build --preset tsan
# Without the tests that are about OpenMP's own threads, whose synchronisation this sanitizer cannot see.
ctest --preset tsan -j "$(nproc)" -E 'ThreadCount|TheCallingThread|^core.Parallel' "${select_tsan[@]}"
