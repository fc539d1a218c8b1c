#!/usr/bin/env bash
# Takes a fresh clone to a trained network: installs what is missing, builds, and trains a ResNet-20 with SyncBatchNorm on
# Fashion-MNIST with two ranks. Flags are passed on to the trainer; see build/release/examples/train_resnet --help.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
cmake --preset release >/dev/null  # each time, because setup.sh may have installed something; it rebuilds nothing
cmake --build --preset release --target train_resnet
exec build/release/examples/train_resnet --ranks 2 --out runs/quickstart "$@"
