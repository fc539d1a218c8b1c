#!/usr/bin/env bash
# Compares tutti with today's PyTorch on this machine's CPU and writes benchmarks/results/cpu.md. It installs PyTorch
# into a Python environment of its own (build/compare/python: 5 GB, some minutes, newest release on PyPI unless $PYTHON
# names an interpreter that has torch, torchvision and safetensors), builds both sides, and lets them take turns. All of
# it takes about 40 minutes; the machine should have nothing else to do. Arguments go to benchmarks/compare/compare.py:
#   benchmarks/compare.sh --only "ResNet-18"     runs the workloads whose name contains this
#   benchmarks/compare.sh --peers eager          leaves torch.compile and jemalloc out
#   benchmarks/compare.sh --memory               measures the peak memory of steps only, into benchmarks/results/memory.md
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
.ci/setup.sh libjemalloc2 libbenchmark-dev python3-venv python3-dev
folder=$PWD/build/compare
mkdir -p "$folder"
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$folder/python/bin/python
  [ -x "$PYTHON" ] || python3 -m venv "$folder/python"
  "$PYTHON" -m pip install --quiet --upgrade torch torchvision numpy safetensors onnx onnxscript onnxruntime openvino
fi
cmake --preset release -DTUTTI_BUILD_BENCHMARKS=ON -DTUTTI_BENCHMARK_TORCH=OFF >/dev/null
cmake --build build/release --target compare_tutti compare_limit train_resnet

result=cpu
for argument; do [ "$argument" != --memory ] || result=memory; done
if [ $result = cpu ]; then
  # CMake does not find this PyTorch, because its configuration asks for the CUDA toolkit that its wheel was built with.
  torch=$("$PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  "${CXX:-c++}" -std=c++20 -O2 -w -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
    benchmarks/compare/compare_libtorch.cpp -o "$folder/compare_libtorch" \
    -L"$torch/lib" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10
fi
exec "$PYTHON" benchmarks/compare/compare.py --build build/release --libtorch "$folder/compare_libtorch" \
  --jemalloc "$(dpkg -L libjemalloc2 | grep -m1 '/libjemalloc\.so')" --out "benchmarks/results/$result.md" "$@"
