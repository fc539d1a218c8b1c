#!/usr/bin/env bash
# Installs what the build needs, builds in release mode and runs tests through ctest, which gets the arguments.
#   tests/run.sh                     what tells whether the library works here: ten minutes on two cores at most
#   tests/run.sh --all               every test, with those that take long; continuous integration runs it
#   tests/run.sh -L autograd         the tests with one label: core, kernels, autograd, distributed, nn, optim, data, random,
#                                    examples, fuzz, mpi, package; with a GPU: gpu, cuda
#   tests/run.sh --all -L hosts      further labels are simulator, hosts, emulator, emulated and races
#   tests/run.sh -R SyncBatchNorm    the suites whose name matches
# tests/README.md explains the labels. Without a GPU, CUDA is compiled with --all alone.
set -euo pipefail
cd "$(dirname "$0")/.."
long=OFF
if [ "${1:-}" = --all ]; then
  long=ON
  shift
fi
.ci/setup.sh
if [ $long = ON ]; then
  export TUTTI_CUDA=${TUTTI_CUDA:-AUTO}
  # It opens the trainer's report.html. Without it, the tests that need it are skipped.
  .ci/setup.sh chromium-headless-shell || echo "tests/run.sh: no Chromium, so that its tests are skipped" >&2
fi
.ci/configure.sh -DTUTTI_LONG_TESTS=$long
cmake --build --preset release
# Many tests of mpi wait for deadlines, so that twice as many entries as cores keep the cores busy.
status=0
ctest --preset release -j "$((2 * $(nproc)))" "$@" || status=$?
tests/count.sh build/release
if [ $long = OFF ]; then
  echo "tests/run.sh: left out, and run by tests/run.sh --all: MPI in a simulator with faults drawn by seeds (label simulator),
  jobs on several emulated hosts (hosts), MPI's fault matrix (mpi), the kernels of CUDA in an emulator, its race detector and
  mutations of barriers (emulator, emulated, races), CUDA's compiler and cuDNN's plans (cuda), ways to install and to use a
  package, and the commands of the documentation (package), and 8 of 10 seconds of each random comparison (random).
  Chromium is not installed to open report.html. TUTTI_CUDA=ON tests/run.sh compiles CUDA."
fi
exit $status
