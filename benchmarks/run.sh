#!/bin/sh
# Builds the benchmarks, runs all of them, writes their tables into benchmarks/results/ and copies these into
# its layer.md. The machine should have nothing else to do; machine.txt records the load before and after.
set -eu
cd "$(dirname "$0")/.."
build=build/release
out=benchmarks/results
cmake --preset release -DTUTTI_BUILD_BENCHMARKS=ON >/dev/null
cmake --build $build --target sync_batch_norm sync_batch_norm_mpi resnet20_step scaling
mkdir -p $out
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

{
  echo "date:      $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit:    $(git rev-parse --short HEAD)"
  echo "command:   benchmarks/run.sh"
  echo "processor: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ //'), family $(grep -m1 'cpu family' /proc/cpuinfo | tr -dc 0-9), model $(grep -m1 'model[[:space:]]*:' /proc/cpuinfo | tr -dc 0-9), $(nproc) cores"
  echo "cache:     $(lscpu | sed -n 's/^ *L[123].* cache: *//p' | paste -sd';')"
  echo "compiler:  $(${CXX:-c++} --version | head -1)"
  echo "MPI:       $(mpirun --version | head -1)"
  echo "load:      $(cut -d' ' -f1-3 /proc/loadavg) before"
} >$out/machine.txt

for threads in 1 2; do
  $build/benchmarks/sync_batch_norm --threads=$threads >$out/sync_batch_norm_$threads.txt
done
raw=$(mktemp)  # a file, because the exit status of a pipe is that of its last command only
trap 'rm -f "$raw"' EXIT
for again in 1 2 3; do mpirun -n 2 --bind-to core $build/benchmarks/sync_batch_norm_mpi; done >"$raw"
grep -v '^$' "$raw" >$out/sync_batch_norm_mpi.txt
for ranks in 2 4; do
  mpirun --oversubscribe -n $ranks $build/benchmarks/scaling >$out/scaling_$ranks.txt
done
$build/benchmarks/resnet20_step >$out/resnet20_step.txt
python3 benchmarks/tables.py
echo "load:      $(cut -d' ' -f1-3 /proc/loadavg) after" >>$out/machine.txt
