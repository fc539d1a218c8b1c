#!/usr/bin/env bash
# Runs the programs of segmentation one after the other: make_scenes writes the same files twice, train_segmentation
# trains on them on two ranks, and segment writes the masks of a picture. Arguments: the programs' folder, a work folder.
set -euo pipefail
programs=$1 work=$2
[ -e /usr/share/datasets/fashion-mnist ] || exit 77
rm -rf "$work" && mkdir -p "$work" && cd "$work"
refuses() {  # TEXT PROGRAM ARGUMENTS...
  local text=$1
  shift
  if "$@" 2>error; then echo "not refused: $*" >&2 && exit 1; fi
  grep -q -- "$text" error || { cat error >&2 && exit 1; }
}
for folder in scenes again; do "$programs/make_scenes" $folder --train 12 --val 4 --size 32; done
diff -r scenes again
"$programs/make_scenes" other --train 1 --val 1 --seed 2 --size 32
if cmp -s scenes/train/images/00000.png other/train/images/00000.png; then exit 1; fi
train=("$programs/train_segmentation" --data scenes --model unet --width 2 --crop 32 --batch-size 4 --epochs 1 --out run)
"${train[@]}" --ranks 2 | tee log
[ "$(tail -1 log | cut -c1-7)" = "mIoU 0." ]
"$programs/segment" run/model.safetensors scenes/val/images/00001.png --out masks
[ -s masks/00001-mask.png ] && [ -s masks/00001-overlay.png ]
refuses usage "$programs/segment" run/model.safetensors
refuses "--size: Value 0 not in range" "$programs/make_scenes" x --size 0
refuses "holds another run" "${train[@]}"
