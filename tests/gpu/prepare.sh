#!/usr/bin/env bash
# Fills third_party/debs (git ignores it) with what tests/gpu/run.sh needs on a machine that reaches no package registry:
# Debian's packages of the libraries we build with, and the images. Run it on a Debian machine with a registry; under
# 40 MB in all. CUDA, cuDNN, NCCL, CMake, a C++ compiler and, for comparison, PyTorch are the GPU machine's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(libdnnl-dev libdnnl2 ocl-icd-libopencl1 libfmt-dev libfmt9 nlohmann-json3-dev libcli11-dev libgtest-dev
          zlib1g-dev dataset-fashion-mnist)

mkdir -p third_party/debs
cd third_party/debs
for package in "${packages[@]}"; do
  compgen -G "${package}_*.deb" >/dev/null || apt-get download -qq -o APT::Sandbox::User=root "$package"
done
bytes=$(cat ./*.deb | wc -c)
echo "prepare: ${#packages[@]} packages, $((bytes / 1000000)) MB in third_party/debs"
if [ "$bytes" -gt 40000000 ]; then
  echo "prepare: that is more than the 40 MB that may travel; remove the packages that are older versions" >&2
  exit 1
fi
