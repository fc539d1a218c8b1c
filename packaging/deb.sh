#!/usr/bin/env bash
# Builds the Debian packages libtutti0.2 and libtutti-dev for the Debian release that this runs on. Their dependencies
# are those of this release. CUDA is left out, because Debian has no cuDNN; further arguments go to CMake.
#   packaging/deb.sh [-DTUTTI_CUDA=ON ...]     the packages go to build/packages
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh g++ cmake ninja-build dpkg-dev file libdnnl-dev libopenmpi-dev libfmt-dev nlohmann-json3-dev \
  zlib1g-dev libjpeg-dev libpng-dev
cmake --preset library -B build/deb -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX=/usr -DTUTTI_CUDA=OFF "$@"
cmake --build build/deb
rm -rf build/packages
cpack -G DEB --config build/deb/CPackConfig.cmake -B build/packages
rm -rf build/packages/_CPack_Packages
for package in build/packages/*.deb; do
  dpkg-deb --field "$package" Package Version Architecture Depends
done
