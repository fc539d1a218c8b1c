#!/usr/bin/env bash
# Runs everything that needs a GPU, on a machine with CUDA and without a package registry: builds, runs every test of
# label gpu, the small tests under compute-sanitizer, NCCL ranks as processes that share one GPU, train_resnet, and the
# benchmarks. It prints a table of these steps and fails if one of them failed. It takes under 9 minutes on 16 cores.
#   tests/gpu/prepare.sh     must have filled third_party/debs before, on a machine with a registry
#   tests/gpu/run.sh         runs all steps, or those that are named: build tests sanitizer nccl train benchmarks
# The results go to $OUT, or else to build/gpu/out: summary.txt, run.log, gpu.md, gpu.json.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD/build/gpu/packages out=${OUT:-$PWD/build/gpu/out} build=$PWD/build/gpu/build logs=$PWD/build/gpu/logs
only=" ${*:-build tests sanitizer nccl train benchmarks} "
rm -rf "$logs"
mkdir -p "$root" "$out" "$logs"
: >"$out/run.log"
summary=() failures=0 all_seconds=525

# step NAME SECONDS COMMAND... runs the command for at most SECONDS, or for the rest of all_seconds. Its output goes to
# $logs/NAME.log and, after that of the other steps, to $out/run.log, because few files come back from a remote machine.
step() {
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  [ "$limit" -gt $((all_seconds - SECONDS)) ] && limit=$((all_seconds - SECONDS))
  echo "== $name: $*"
  if [ "$limit" -lt 5 ]; then
    failures=$((failures + 1))
    summary+=("$(printf '%-12s %5d s  %s' "$name" 0 "NOT RUN (no time left)")")
    return 1
  fi
  timeout --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  { echo "== $name: $*"; cat "$logs/$name.log"; } >>"$out/run.log"
  local verdict=passed
  case $status in
    0) ;;
    124 | 137) verdict="FAILED (over $limit s)" ;;
    *) verdict="FAILED (exit code $status)" ;;
  esac
  if [ $status -ne 0 ]; then
    failures=$((failures + 1))
    tail -n 25 "$logs/$name.log"
  fi
  summary+=("$(printf '%-12s %5d s  %s' "$name" $((SECONDS - begin)) "$verdict")")
  return $status
}
wanted() { [[ $only == *" $1 "* ]]; }

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total \
  --format=csv,noheader | tee "$logs/machine.txt"
nvcc --version | tail -n 2 | tee -a "$logs/machine.txt"

compgen -G 'third_party/debs/*.deb' >/dev/null || { echo "run: third_party/debs is empty: run tests/gpu/prepare.sh" >&2; exit 2; }
for package in third_party/debs/*.deb; do dpkg -x "$package" "$root"; done
libraries=$root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CMAKE_PREFIX_PATH=$root/usr OMP_WAIT_POLICY=passive
# OpenSSL's headers include one that Debian keeps in the folder of the architecture.
export CPATH=$root/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
images=$root/usr/share/datasets/fashion-mnist

# cuDNN and NCCL are the system's or, if it has none, those of PyTorch's wheels.
hints=()
wheels=$(python3 -c 'import nvidia, os; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
for name in cudnn nccl; do
  [ -n "$wheels" ] && ! ldconfig -p | grep "lib$name.so " >/dev/null || continue
  library=$(ls "$wheels/$name/lib/lib$name.so"* 2>/dev/null | head -n 1)
  [ -n "$library" ] && hints+=("-DTUTTI_${name}_LIBRARY=$library" "-DTUTTI_${name}_INCLUDE=$wheels/$name/include") &&
    LD_LIBRARY_PATH=$wheels/$name/lib:$LD_LIBRARY_PATH
done

if wanted build; then
  step build 280 bash -c 'cmake -S . -B "$0" -G "$(command -v ninja >/dev/null && echo Ninja || echo "Unix Makefiles")" \
      -DCMAKE_BUILD_TYPE=Release -DTUTTI_CUDA=ON -DTUTTI_CUDA_ARCHITECTURES=native -DTUTTI_CUDA_EMULATOR=OFF \
      -DTUTTI_MPI=OFF -DZLIB_LIBRARY="$1/libz.a" -DZLIB_INCLUDE_DIR="$2/usr/include" \
      -DOPENSSL_SSL_LIBRARY="$1/libssl.a" \
      -DOPENSSL_CRYPTO_LIBRARY="$1/libcrypto.a" -DOPENSSL_INCLUDE_DIR="$2/usr/include" "${@:3}" &&
    cmake --build "$0" -j "$(nproc)" --target gpu_tests nccl_processes_tests train_resnet gpu_benchmark' \
    "$build" "$libraries" "$root" ${hints[@]+"${hints[@]}"} || { printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"; exit 1; }
fi

wanted tests && step tests 120 ctest --test-dir "$build" -L '^gpu$' -E NcclProcesses -j 8 --no-tests=error --output-on-failure
if wanted sanitizer; then
  # These tools slow kernels down more than a hundredfold, so they run the suites Small*, which have few launches on a few
  # hundred elements. All but memcheck run our own kernels only, not those of NVIDIA's libraries.
  for tool in memcheck racecheck initcheck synccheck; do
    filter='SmallKernels*'
    [ "$tool" = memcheck ] && filter='Small*'
    step "$tool" 45 compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20 "$build/tests/gpu/gpu_tests" \
      --gtest_filter="$filter"
  done
fi
wanted nccl && step nccl 60 env NCCL_DEBUG=WARN ctest --test-dir "$build" -R NcclProcesses --no-tests=error --output-on-failure
if wanted train; then
  step train 60 "$build/examples/train_resnet" --device cuda --data "$images" --epochs 2 --sync-bn \
    --overwrite --out build/gpu/runs/float32
  grep -h 'test accuracy' "$logs/train.log" | tail -n 1
fi
wanted benchmarks && step benchmarks 400 python3 benchmarks/gpu/run.py --library "$build/benchmarks/gpu/libgpu_benchmark.so" \
  --out "$out" --seconds $((all_seconds - SECONDS - 15))

echo
{ cat "$logs/machine.txt"; printf '%s\n' "${summary[@]}"; } | tee "$out/summary.txt"
[ "$failures" -eq 0 ]
