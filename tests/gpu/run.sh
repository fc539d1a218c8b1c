#!/usr/bin/env bash
# Runs what needs a GPU, in three calls, on a machine with a driver and without a compiler, packages and a network. A call
# unpacks build/gpu/carry.tar.xz, which tests/gpu/prepare.sh has made, goes on after a step that fails, and prints a summary.
#   tests/gpu/run.sh 1       the tests: small kernels and models, graphs, then all of them, then memcheck on small kernels
#   tests/gpu/run.sh 2       ranks with NCCL, and training in float32, bfloat16 and with graphs, whose results are compared
#   tests/gpu/run.sh 3       the benchmarks beside PyTorch, ResNet-50 first
#   tests/gpu/run.sh plan    prints what each call may take, and fails where that is too much
# The results go to $OUT, or else to build/gpu/out: summary-CALL.txt, which can be committed, log-CALL.txt, gpu.md, gpu.json.
# DEVICE=cpu and SLOWER=FACTOR are for tests/gpu/rehearse.sh.
set -uo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../.."
carry=$PWD/build/gpu/carry out=${OUT:-$PWD/build/gpu/out} logs=$PWD/build/gpu/logs device=${DEVICE:-cuda}
failures=0 planned=0 call=${1:-}

# step NAME SECONDS COMMAND... runs a command for at most so long, and notes what became of it. A plan only adds up.
step() {
  local name=$1 limit=$(($2 * ${SLOWER:-1})) begin=$SECONDS status verdict=passed
  planned=$((planned + $2))
  shift 2
  [ "$call" != plan ] || return 0
  echo "== $name"
  timeout --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  { echo "== $name: $*"; cat "$logs/$name.log"; } >>"$out/log-$call.txt"
  case $status in
    0) ;;
    77) verdict="NOT RUN: $(tail -n 1 "$logs/$name.log")" ;;
    124 | 137) verdict="FAILED: over $limit s" ;;
    *) verdict="FAILED: exit code $status" ;;
  esac
  case $status in 0 | 77) ;; *) failures=$((failures + 1)) && tail -n 25 "$logs/$name.log" ;; esac
  note "$(printf '%-14s %4d s  %s' "$name" $((SECONDS - begin)) "$verdict")"
  grep -E '^\[  (PASSED|FAILED|SKIPPED \] [0-9])|test accuracy|training loss|^skipped:' "$logs/$name.log" | sort -u | head -n 30 |
    tee -a "$out/summary-$call.txt"
  return 0
}
note() { echo "$*" | tee -a "$out/summary-$call.txt"; }

# Runs all tests in eight processes, and after them those that need most of the memory.
all_tests() {
  local i status=0 pids=()
  for i in 0 1 2 3 4 5 6 7; do
    GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$i "$carry/gpu_tests" --gtest_brief=1 --gtest_filter='-*Large*' &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || status=$?; done
  "$carry/gpu_tests" --gtest_brief=1 --gtest_filter='*Large*' || status=$?
  return $status
}

memcheck() {
  command -v compute-sanitizer >/dev/null || { echo "this machine has no compute-sanitizer"; return 77; }
  compute-sanitizer --tool memcheck --error-exitcode 99 --print-limit 20 "$carry/gpu_tests" --gtest_brief=1 \
    --gtest_filter='SmallKernels*'
}

ranks() { NCCL_DEBUG=WARN "$carry/gpu_tests" --gtest_brief=1 --gtest_filter='*Nccl*'; }

# train NAME FLAG... trains for an epoch.
train() {
  local name=$1
  shift
  "$carry/train_resnet" --device "$device" --data "$carry/images" --epochs 1 --max-steps "${STEPS:-400}" --overwrite \
    --out "build/gpu/runs/$name" "$@"
}

# Compares the mean training loss of the last ten rows. Rounding changes it by less than the order of the images does.
losses() {
  local name first='' loss
  for name in float32 bfloat16 graph; do
    loss=$(grep -o '"train_loss": *[^,}]*' "build/gpu/runs/$name/metrics.jsonl" | tail -n 10 |
      awk -F: '{ s += $2 } END { print s / NR }')
    echo "$name: training loss $loss"
    first=${first:-$loss}
    awk -v a="$first" -v b="$loss" 'BEGIN { exit !(b > 0.9 * a && b < 1.1 * a) }' ||
      { echo "$name: expected a loss within a tenth of that in float32, $first"; return 1; }
  done
}

benchmarks() {
  python3 -c 'import torch' 2>/dev/null || { echo "this machine has no PyTorch to compare with"; return 77; }
  [ "$device" = cuda ] || set -- --quick
  python3 benchmarks/gpu/run.py --library "$carry/libgpu_benchmark.so" --out "$out" --seconds 200 --device "$device" "$@"
}

call_1() {
  step small 30 "$carry/gpu_tests" --gtest_brief=1 --gtest_filter='Small*'
  step graphs 40 "$carry/gpu_tests" --gtest_brief=1 --gtest_filter='*Graph*'
  step all 150 bash "$self" inside all_tests
  step memcheck 50 bash "$self" inside memcheck
}
call_2() {
  step ranks 60 bash "$self" inside ranks
  step float32 30 bash "$self" inside train float32 --no-cuda-graph
  step bfloat16 30 bash "$self" inside train bfloat16 --precision bf16 --no-cuda-graph
  step graph 30 bash "$self" inside train graph --precision bf16
  step losses 5 bash "$self" inside losses
}
call_3() { step benchmarks 240 bash "$self" inside benchmarks; }

case $call in
  plan)
    all=0
    for n in 1 2 3; do
      planned=0
      "call_$n"
      echo "call $n: $planned s"
      all=$((all + planned))
      [ "$planned" -le 540 ] || { echo "expected at most 540 s of the 600 s of a command" >&2; exit 1; }
    done
    [ "$all" -le 720 ] || { echo "expected at most 720 s of the 900 s of all calls, which have to start machines" >&2; exit 1; }
    exit 0 ;;
  inside) shift && "$@"; exit ;;
  [123]) ;;
  *) sed -n '2,/^set/{/^#/p}' "$self" >&2; exit 2 ;;
esac

rm -rf "$carry"
mkdir -p "$carry" "$out" "$logs"
: >"$out/log-$call.txt" >"$out/summary-$call.txt"
# Where there is no xz, Python unpacks.
tar -C "$carry" -xJf "$carry.tar.xz" 2>/dev/null || python3 -m tarfile -e "$carry.tar.xz" "$carry" || { echo "run: no programs: run tests/gpu/prepare.sh first" >&2; exit 2; }
{ read -r sources && read -r built; } <"$carry/folders"
[ -e "$sources" ] || { mkdir -p "$(dirname "$sources")" && ln -s "$PWD" "$sources"; }
[ -e "$built/tests/gpu/gpu_ranks" ] || { mkdir -p "$built/tests" && ln -sfn "$carry" "$built/tests/gpu"; }
# Libraries that the machine has are its own: PyTorch, which the benchmarks load beside ours, needs its libstdc++.
mkdir -p "$carry/used"
for library in "$carry"/lib/*; do
  name=$(basename "$library")
  case $name in libstdc++* | libgcc_s* | libgomp*) ldconfig -p 2>/dev/null | grep -q "$name " && continue ;; esac
  ln -sfn "$library" "$carry/used/$name"
done
# cuDNN, NCCL and cuBLASLt are the system's or, if it has none, those of PyTorch's wheels.
wheels=$(python3 -c 'import nvidia, os; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for folder in ${wheels:+"$wheels"/*/lib}; do LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; done
export LD_LIBRARY_PATH=$carry/used${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

note "commit $(cat "$carry/commit"), call $call"
command -v nvidia-smi >/dev/null &&
  note "$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total --format=csv,noheader)"
"call_$call"
note "call $call: $failures steps failed, $SECONDS s"
[ "$failures" -eq 0 ]
