#!/usr/bin/env bash
# Builds the MPI backend and its tests with MPICH, which Debian installs beside Open MPI, and runs them with MPICH's own
# launcher. What only Open MPI can do is skipped with the reason. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
.ci/setup.sh libmpich-dev mpich

build=build/mpich
cmake --preset release -B $build -DMPI_EXECUTABLE_SUFFIX=.mpich -DTUTTI_MPI=ON -DTUTTI_CUDA=OFF -DTUTTI_CUDA_EMULATOR=OFF
cmake --build $build --target tests/mpi/all train_resnet training_loop
ctest --test-dir $build --output-on-failure --no-tests=error -j "$((2 * $(nproc)))" -L '^mpi$' "$@"
