#!/usr/bin/env bash
# Builds and runs the tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer. The first
# are those of clang, which compiles them in two thirds of GCC's time and checks more, such as offsets from a null pointer.
# `tests/sanitizers.sh short` builds and runs what CI has time for, which is what can fail under them: the first where
# memory is computed and shared (core, kernels, autograd, distributed, data, the random inputs, and of nn what ranks and
# threads share), the second where threads share memory (ranks, loading threads). The rest, the other tests of nn, optim, the
# trainer and the MPI jobs, is run by hand before a release; tests/fuzz.sh has both sanitizers of its own.
# `tests/sanitizers.sh short build` builds them only.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
.ci/setup.sh clang libclang-rt-dev
select_asan=() select_tsan=() asan_targets=(all) tsan_targets=(all) long=ON
if [ "${1:-}" = short ]; then
  long=OFF
  asan_targets=({core,kernels,autograd,distributed,nn,data,random}_tests)
  tsan_targets=({distributed,nn,data}_tests)
  select_asan=(-L '^(core|kernels|autograd|distributed|nn|data|random)$')
  select_tsan=(-R '^(distributed|nn)\.|^data\.(DataLoader|BrokenFolder)')
fi

cmake --preset asan -DTUTTI_LONG_TESTS=$long
cmake --build --preset asan --target "${asan_targets[@]}"
cmake --preset tsan -DTUTTI_LONG_TESTS=$long
cmake --build --preset tsan --target "${tsan_targets[@]}"
[ "${2:-}" = build ] && exit

ctest --preset asan -j "$(nproc)" "${select_asan[@]}"
ctest --preset tsan -j "$(nproc)" "${select_tsan[@]}"
