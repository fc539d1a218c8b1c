#!/usr/bin/env bash
# Takes a fresh clone to a trained network: installs what is missing, builds, and trains a ResNet-20 with SyncBatchNorm on
# Fashion-MNIST with two ranks. Flags are passed on to the trainer; see build/release/examples/train_resnet --help. A
# second call trains anew and replaces what is in runs/quickstart, unless --resume (go on) or --out (elsewhere) is given.
# Without a GPU here it builds without CUDA, unless TUTTI_CUDA=ON is in the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
if [ ! -e /usr/share/datasets/fashion-mnist ] && [[ " $*" != *" --data"* ]]; then
  .ci/setup.sh dataset-fashion-mnist || {
    echo "quickstart: there is no package of the images here. Download the four files of Fashion-MNIST (see" >&2
    echo "https://github.com/zalandoresearch/fashion-mnist) into a folder and pass --data FOLDER, or pass" >&2
    echo "--dataset synthetic" >&2
    exit 1
  }
fi
.ci/configure.sh  # each time, because setup.sh may have installed something; it rebuilds nothing
cmake --build --preset release --target train_resnet
folder=(--out runs/quickstart --overwrite)
for flag in "$@"; do
  case "$flag" in
    --resume | --overwrite) folder=(--out runs/quickstart) ;;
    --out | --out=*) folder=() && break ;;
  esac
done
exec build/release/examples/train_resnet --ranks 2 "${folder[@]}" "$@"
