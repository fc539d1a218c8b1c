#!/usr/bin/env bash
# Downloads the Debian packages that tests/gpu/run.sh needs on a machine without a package registry to third_party/debs,
# which git ignores: the libraries that we build with, and the images. Run it on a Debian machine with a registry. The
# packages must be smaller than 40 MB together. The GPU machine itself has CUDA, cuDNN, NCCL, CMake, a C++ compiler and,
# for comparisons, PyTorch.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(libdnnl-dev libdnnl2 ocl-icd-libopencl1 libfmt-dev libfmt9 nlohmann-json3-dev libssl-dev libssl3 libcli11-dev
          libgtest-dev zlib1g-dev libjpeg62-turbo-dev libjpeg62-turbo libpng-dev libpng16-16 dataset-fashion-mnist)

mkdir -p third_party/debs
cd third_party/debs
for package in "${packages[@]}"; do
  compgen -G "${package}_*.deb" >/dev/null || apt-get download -qq -o APT::Sandbox::User=root "$package"
done
bytes=$(cat ./*.deb | wc -c)
echo "prepare: ${#packages[@]} packages, $((bytes / 1000000)) MB in third_party/debs"
if [ "$bytes" -gt 40000000 ]; then
  echo "prepare: expected at most 40 MB; remove older versions of the packages from third_party/debs" >&2
  exit 1
fi
