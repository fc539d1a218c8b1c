#!/usr/bin/env bash
# Runs the programs of segmentation one after the other: make_scenes writes the same files twice, train_segmentation
# trains on them on two ranks, and segment writes the masks of pictures. None replaces a file unless asked. Arguments:
# the programs' folder, a work folder.
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
refuses "other/train exists: --overwrite" "$programs/make_scenes" other --train 1 --val 1 --size 32
"$programs/make_scenes" other --train 1 --val 1 --size 32 --overwrite
cmp scenes/train/images/00000.png other/train/images/00000.png
train=("$programs/train_segmentation" --data scenes --model unet --width 2 --crop 32 --batch-size 4 --epochs 1 --out run)
"${train[@]}" --ranks 2 | tee log
[ "$(tail -1 log | cut -c1-7)" = "mIoU 0." ]
grep -q "^pixels in 12 of 12 training masks: ground " log
segment=("$programs/segment" run/model.safetensors)
"${segment[@]}" scenes/val/images/00001.png --out masks
[ -s masks/00001-mask.png ] && [ -s masks/00001-overlay.png ]
echo truth >masks/00001-mask.png
refuses "00001-mask.png exists: --overwrite" "${segment[@]}" scenes/val/images/0000{0,1}.png --out masks
[ "$(cat masks/00001-mask.png)" = truth ] && [ ! -e masks/00000-mask.png ]
"${segment[@]}" scenes/val/images/00001.png --out masks --overwrite
[ "$(cat masks/00001-mask.png)" != truth ]
cp scenes/val/images/00001.png scenes/val/images/00001.jpg
"${segment[@]}" scenes/{train,val}/images/00001.png scenes/val/images/00001.jpg scenes/val/images/00002.png --out both
for name in {train,val}/images/00001.png val/images/0000{1.jpg,2.png}; do [ -s both/$name-mask.png ]; done
cmp both/val/images/00001.png-mask.png masks/00001-mask.png
rm scenes/val/images/00001.jpg  # training refuses two pictures of one name
refuses "given twice" "${segment[@]}" scenes/val/images/00001.png ./scenes/val/images/00001.png
# A checkpoint has the same weights, and config.json beside it the flags of the run.
"$programs/segment" run/checkpoint.safetensors scenes/val/images/00001.png --out of_checkpoint
cmp of_checkpoint/00001-mask.png masks/00001-mask.png
"$programs/train_segmentation" --out run --resume --epochs 2 >log
grep -q "^flags of run/config.json: --data=scenes --model=unet" log
[ "$(tail -1 log | cut -c1-7)" = "mIoU 0." ]
refuses usage "${segment[@]}"
"${segment[@]}" --help | grep -q -- --overwrite
refuses "--size: Value 0 not in range" "$programs/make_scenes" x --size 0
refuses "holds another run" "${train[@]}"
