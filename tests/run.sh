#!/usr/bin/env bash
# The test command: sets the machine up, builds in release mode and runs every test through ctest.
#   tests/run.sh                     everything
#   tests/run.sh -L autograd         the tests of one folder (core, kernels, autograd, distributed, nn, optim, examples, mpi, package)
#   tests/run.sh -R SyncBatchNorm    the tests whose name matches
# Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
cmake --preset release
cmake --build --preset release
ctest --preset release -j "$(nproc)" "$@"
