#!/usr/bin/env bash
# Builds the libFuzzer targets of tests/fuzz with clang and runs each, from its corpus on.
#   tests/fuzz.sh                    every target for 20 s
#   tests/fuzz.sh 600 idx cifar      these targets for 600 s
# Inputs that reach new code are kept in build/fuzz/corpus, so that a later run goes on from there. An input that crashes
# a target, takes over 10 s or over 1 GiB is kept in build/fuzz/crashes, and the script fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
[ $# -gt 0 ] && shift
.ci/setup.sh
.ci/setup.sh clang libclang-rt-dev
cmake --preset fuzz
cmake --build --preset fuzz

if [ $# -eq 0 ]; then
  mapfile -t names < <(cd tests/fuzz && ls -- *_fuzz.cpp | sed 's/_fuzz\.cpp$//')
  set -- "${names[@]}"
fi
TMPDIR=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/tutti_fuzz_XXXXXX")
export TMPDIR OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/lsan.supp:print_suppressions=0
trap 'rm -rf "$TMPDIR"' EXIT

# fuzz NAME: runs one target, and says how many inputs it tried.
fuzz() {
  local work=build/fuzz log=build/fuzz/$1.log options=()
  mkdir -p "$work/corpus/$1" "$work/crashes"
  [ -e "tests/fuzz/$1.dict" ] && options=(-dict="tests/fuzz/$1.dict")
  if "$work/tests/fuzz/$1_fuzz" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$work/crashes/$1-" "${options[@]}" "$work/corpus/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1; then
    echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
    return
  fi
  tail -n 60 "$log" >&2
  local input
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  echo "fuzz: $1 failed; $log has everything. To repeat: $work/tests/fuzz/$1_fuzz $input" >&2
  return 1
}
export -f fuzz
export seconds
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz "$1"' fuzz
