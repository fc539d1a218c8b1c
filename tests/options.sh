#!/usr/bin/env bash
# Builds the library without one of its optional parts at a time and runs the tests of core and kernels, and with oneDNN
# those of convolution in nn. Arguments name the parts to leave out; all of them without arguments. CUDA is left out
# each time, because nvcc takes long. Not part of .ci/run: it takes about ten minutes with a filled ccache.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(CUDA MPI IMAGES ONEDNN)

for part in "${parts[@]}"; do
  folder=build/without_${part,,}
  options=(-DTUTTI_CUDA=OFF -DTUTTI_CUDA_EMULATOR=OFF "-DTUTTI_$part=OFF")
  echo "options: without $part"
  cmake --preset release -B "$folder" -DTUTTI_BUILD_EXAMPLES=OFF "${options[@]}" >"$folder.log" ||
    { cat "$folder.log"; exit 1; }
  ninja -C "$folder" core_tests kernels_tests nn_tests
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j2 -R '^(core|kernels)\.|^nn\.(Conv|Linear|.*Pool)'
done
echo "options: the library builds and passes without each of: ${parts[*]}"
