#!/usr/bin/env bash
# Builds the library and the tests of core, kernels, autograd and nn for 64-bit ARM with Debian's cross compiler, and
# runs them under qemu. Arguments go to ctest, such as -R Conv. The arm64 libraries are unpacked below build/, so that
# the system stays as it is, but for the compiler and qemu. oneDNN is used, MPI and image files are not.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh g++-aarch64-linux-gnu qemu-user-static cmake ninja-build

folder=$PWD/build/aarch64
sysroot=$folder/sysroot
packages=(libc6-dev libdnnl-dev libfmt-dev libgtest-dev linux-libc-dev nlohmann-json3-dev zlib1g-dev)

# Downloads the packages and all that they depend on with an apt of its own, which knows of no installed package.
download() {
  local apt=$folder/apt
  mkdir -p "$apt"/{state/lists/partial,cache/archives/partial}
  : > "$apt/status"
  local options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state"
                 -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root
                 -o Debug::NoLocking=true)
  apt-get "${options[@]}" -qq update
  apt-get "${options[@]}" -qq --yes --no-install-recommends --download-only install "${packages[@]}"
}

# Debian's packages have absolute links to shared libraries, which would lead out of the sysroot.
unpack() {
  mkdir -p "$sysroot"
  for package in "$folder"/apt/cache/archives/*.deb; do dpkg -x "$package" "$sysroot"; done
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfn "$sysroot$(readlink "$link")" "$link"
  done
}

if [ ! -e "$sysroot/.complete" ]; then
  download
  unpack
  touch "$sysroot/.complete"
fi
cmake --preset release -B "$folder/release" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
  -DCMAKE_SYSROOT="$sysroot" -DTUTTI_NATIVE=OFF -DTUTTI_MPI=OFF -DTUTTI_IMAGES=OFF -DTUTTI_CUDA=OFF \
  -DTUTTI_CUDA_EMULATOR=OFF -DTUTTI_BUILD_EXAMPLES=OFF
ninja -C "$folder/release" {core,kernels,autograd,nn}_tests
ctest --test-dir "$folder/release" --output-on-failure --no-tests=error --timeout 1200 -L '^(core|kernels|autograd|nn)$' "$@"
