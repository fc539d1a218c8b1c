#!/usr/bin/env bash
# Packs what tests/gpu/run.sh runs on a machine with a GPU and its driver, but without a compiler, packages and a network:
# the test programs, train_resnet and the library of the benchmarks, for sm_90 and as PTX for later GPUs, without symbols,
# with the libraries that they need and images to train on. Needs nvcc and no GPU. The result is build/gpu/carry.tar.xz.
#   tests/gpu/prepare.sh          builds the programs in build/gpu/build, for every x86-64 processor, and packs them
#   tests/gpu/prepare.sh BUILD    packs those of another build folder
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/gpu/build} carry=build/gpu/carry
images=/usr/share/datasets/fashion-mnist
if [ $# -eq 0 ]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DTUTTI_CUDA=ON -DTUTTI_NATIVE=OFF \
    -DTUTTI_CUDA_ARCHITECTURES=90 -DTUTTI_CUDA_EMULATOR=OFF -DTUTTI_MPI=OFF
  cmake --build "$build" --target gpu_tests train_resnet gpu_benchmark
fi

rm -rf "$carry"
mkdir -p "$carry/lib" "$carry/images"
for name in tests/gpu/gpu_tests benchmarks/gpu/libgpu_benchmark.so examples/train_resnet; do
  strip -o "$carry/$(basename "$name")" "$build/$name"
done
# The C library is the machine's own; the other libraries of the compiler are used only where the machine has none.
find "$carry" -maxdepth 1 -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so|/build/' | while read -r library; do cp -L "$library" "$carry/lib"; done
# The first 20,000 images of each file: all of them would take 26 MB.
python3 - "$images" "$carry/images" <<'END'
import gzip, pathlib, struct, sys
source, target = map(pathlib.Path, sys.argv[1:])
for path in source.glob("*.gz"):
    data = gzip.decompress(path.read_bytes())
    count = struct.unpack(">i", data[4:8])[0]
    header = 4 + 4 * data[3]  # one number for each dimension
    kept = min(count, 20000)
    data = data[:4] + struct.pack(">i", kept) + data[8:header + kept * ((len(data) - header) // count)]
    (target / path.name).write_bytes(gzip.compress(data))
END
# Programs know the folders of the sources and of the build, where run.sh makes a link.
printf '%s\n' "$PWD" "$(realpath "$build")" >"$carry/folders"
git describe --always --dirty >"$carry/commit" 2>/dev/null || echo unknown >"$carry/commit"
tar -C "$carry" -c . | xz -T1 --lzma2=preset=2,dict=64MiB >"$carry.tar.xz"
rm -rf "$carry"

# The sources travel, too.
sources=$(git ls-files -z | xargs -0 cat | wc -c) bytes=$(stat -c %s "$carry.tar.xz")
echo "prepare: $((bytes / 1000000)) MB in $carry.tar.xz, $((sources / 1000000)) MB of sources"
if [ $((bytes + sources)) -gt $((60 << 20)) ]; then
  echo "prepare: expected at most 60 MiB together" >&2
  exit 1
fi
