#!/usr/bin/env bash
# Configures the preset release; examples/quickstart.sh and tests/run.sh call it, so that they share a build. Without a GPU
# here, CUDA is left out, which takes half of the time to compile; the variable TUTTI_CUDA decides otherwise. What is on
# or off changes no other object. Arguments go to CMake.
set -euo pipefail
cd "$(dirname "$0")/.."
cuda=${TUTTI_CUDA:-AUTO}
if [ -z "${TUTTI_CUDA:-}" ] && [ ! -e /dev/nvidia0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
  cuda=OFF
  echo "configure: without CUDA, because this machine has no GPU; set TUTTI_CUDA=ON in the environment to build it all the same"
fi
mkdir -p build
cmake --preset release -DTUTTI_CUDA="$cuda" "$@" >build/configure.log || { cat build/configure.log; exit 1; }
