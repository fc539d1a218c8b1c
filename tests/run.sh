#!/usr/bin/env bash
# Installs what the build needs, builds in release mode and runs the tests through ctest, which gets the arguments.
#   tests/run.sh                     runs every test
#   tests/run.sh -L autograd         runs the tests with one label: core, kernels, autograd, distributed, nn, optim, data,
#                                    random, examples, fuzz, mpi, simulator, hosts, package, emulator, emulated, races, and with CUDA: gpu, cuda
#   tests/run.sh -R SyncBatchNorm    runs the tests whose name matches
# tests/README.md explains the labels.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
# It opens the trainer's report.html. Without it, the tests that need it are skipped.
.ci/setup.sh chromium-headless-shell || echo "tests/run.sh: no Chromium, so that its tests are skipped" >&2
cmake --preset release
cmake --build --preset release
ctest --preset release -j "$(nproc)" "$@"
