#!/usr/bin/env bash
# Takes a fresh clone to a trained segmentation network: installs what is missing, builds, makes 2,000 scenes of
# Fashion-MNIST's articles, trains a small U-Net with SyncBatchNorm on two ranks, and prints its mean IoU on 200 other
# scenes. The report of the run and the masks of three scenes are in runs/segmentation. Flags are passed on to the
# trainer; see build/release/examples/train_segmentation --help.
set -euo pipefail
cd "$(dirname "$0")/.."
.ci/setup.sh
[ -e /usr/share/datasets/fashion-mnist ] || .ci/setup.sh dataset-fashion-mnist || {
  echo "segmentation: there is no package of Fashion-MNIST here; examples/quickstart.sh says where to get it, and" >&2
  echo "build/release/examples/make_scenes --data FOLDER reads it" >&2
  exit 1
}
cmake --preset release >/dev/null
cmake --build --preset release --target make_scenes train_segmentation segment
programs=build/release/examples
[ -e runs/scenes/val/masks/00199.png ] || $programs/make_scenes runs/scenes --overwrite
$programs/train_segmentation --data runs/scenes --ranks 2 --out runs/segmentation --overwrite --model unet --width 12 \
  --crop 64 --min-scale 0.8 --max-scale 1.25 --epochs 28 --batch-size 16 --optimizer adamw --lr 0.004 "$@"
$programs/segment runs/segmentation/model.safetensors runs/scenes/val/images/0000{0,1,2}.png --out runs/segmentation \
  --overwrite >/dev/null
grep -o '"test_miou":[0-9.]*' runs/segmentation/metrics.jsonl | tail -1 |
  awk -F: '{ printf "mIoU %.4f\n", $2 }'
