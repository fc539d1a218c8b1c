#!/usr/bin/env python3
"""Writes the weights of a PyTorch classifier as a safetensors file that tutti's nn::Predictor and examples/classify read:
the tensors under their own names, and in the metadata a model card (nn/models/model_card.h) with class names, mean, standard
deviation and picture size.

    import_torchvision.py resnet50                                  torchvision's weights, which it may download
    import_torchvision.py resnet50 --weights IMAGENET1K_V1
    import_torchvision.py resnet18 --pth mine.pth --classes-file names.txt --resize 256 --crop 224

Needs PyTorch, and torchvision for the first two. Files are read with weights_only=True, so that they cannot run code, and
downloads must have the hash in their name. Errors are one line on standard error and exit status 2; after a wrong flag
the usage stands before it."""
import argparse
import ctypes
import json
import math
import os
import struct
import sys
import tempfile

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "resize_size": 256, "input_size": 224}


class ImportFailure(Exception):
    """What is wrong with the input, in one line."""


# ---- Writing. This part needs the standard library only, and the tests call it without PyTorch.

def metadata_of(card):
    """The metadata of a card, a dict with the fields of nn::ModelCard. Refuses what nn::ModelCard would refuse."""
    def expect(condition, text):
        if not condition:
            raise ImportFailure("model card: expected " + text)

    names, channels = card["class_names"], card["channels"]
    expect(card["classes"] >= 1, f"at least 1 class, got {card['classes']}")
    expect(not names or len(names) == card["classes"],
           f"{card['classes']} class names, one for each logit, got {len(names)}")
    for name in names:
        expect(not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name),
               f"class names without control characters, got {name!a}")
    for key in ("mean", "std"):
        expect(len(card[key]) == channels and all(map(math.isfinite, card[key])),
               f"{channels} numbers in {key}, one for each channel, got {card[key]}")
    expect(all(value > 0 for value in card["std"]), f"positive numbers in std, got {card['std']}")
    size, resize = card["input_size"], card["resize_size"]
    expect(1 <= size <= 16384, f"a crop of 1 to 16384 pixels, got {size}")
    expect(resize == 0 or size <= resize <= 16384, f"a resize of 0, or of {size} (the crop) to 16384, got {resize}")
    return {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in card.items()}


def write_safetensors(path, tensors, metadata):
    """Writes {name: (dtype, shape, bytes)}, with the format's names of dtypes ("F32"). `path` is either the old file or
    the whole new one."""
    # Wide elements come first, so that every tensor is aligned to the size of its elements.
    order = sorted(tensors, key=lambda name: -element_size(tensors[name]))
    header, end = {"__metadata__": metadata}, 0
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    draft = tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(path)), prefix=".import_", delete=False)
    try:
        with draft:
            draft.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                draft.write(tensors[name][2])
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(draft.name, 0o666 & ~umask)
        os.replace(draft.name, path)
    except BaseException:
        os.unlink(draft.name)
        raise


def element_size(tensor):
    dtype, shape, data = tensor
    return len(data) // max(1, math.prod(shape))


# ---- Reading.

def unwrap(state):
    """The state dict in a file, which training programs put under one of these keys, beside optimizer and epoch."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    return state


def named_tensors(state, is_tensor, source):
    """The tensors of a state dict, without the prefixes of DataParallel, torch.compile and training frameworks."""
    if not isinstance(state, dict) or not state:
        raise ImportFailure(f"{source}: expected a state dict, got {type(state).__name__}; save model.state_dict()")
    for name, value in state.items():
        if not isinstance(name, str) or not is_tensor(value):
            raise ImportFailure(f"{source}: expected names and tensors, got {name!a}: {type(value).__name__}; save "
                                "model.state_dict()")
    for prefix in ("_orig_mod.", "module.", "_orig_mod.", "model."):
        if all(name.startswith(prefix) for name in state):
            state = {name[len(prefix):]: value for name, value in state.items()}
    return state


def load_pth(path):
    import torch
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the reader has errors of many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            reason = "the file holds a pickled module or other objects: save model.state_dict()"
        raise ImportFailure(f"{path}: expected a state dict that torch.load(weights_only=True) reads: {reason}")
    return named_tensors(unwrap(state), torch.is_tensor, path)


def load_torchvision(model, weights_name):
    """The state dict of torchvision's weights, and the fields of the card that come with them."""
    try:
        from torchvision import models
    except ImportError as error:
        raise ImportFailure(f"expected an installed torchvision, or a file with --pth: {error}")
    try:
        weights = models.get_model_weights(model)[weights_name]
    except (KeyError, ValueError) as error:
        raise ImportFailure(f"expected a model and weights of torchvision, got {model} {weights_name}: {error}")
    import torch
    preset = weights.transforms()
    known = {"mean": list(preset.mean), "std": list(preset.std), "resize_size": preset.resize_size[0],
             "input_size": preset.crop_size[0], "class_names": list(weights.meta["categories"])}
    try:  # with the hash in the file's name, which also covers an older download in the cache
        state = torch.hub.load_state_dict_from_url(weights.url, progress=sys.stderr.isatty(), check_hash=True,
                                                   map_location="cpu", weights_only=True)
    except RuntimeError as error:
        raise ImportFailure(f"{weights.url}: expected the file with the hash in its name: {error}")
    return state, known


def complete(state):
    """Adds the counters of batch normalisation, which files older than PyTorch 0.4.1 lack."""
    import torch
    for name in [name for name in state if name.endswith("running_mean")]:
        state.setdefault(name.replace("running_mean", "num_batches_tracked"), torch.zeros((), dtype=torch.int64))
    return state


def raw(name, tensor):
    """A tensor as the format has it: the name of its dtype, its shape, its bytes in row-major order."""
    import torch
    names = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16",
             torch.int64: "I64", torch.uint8: "U8", torch.bool: "BOOL"}
    if tensor.dtype not in names:
        raise ImportFailure(f"tensor {name!a}: expected a dtype of {', '.join(names.values())}, got {tensor.dtype}")
    dense = tensor.detach().contiguous()
    return names[tensor.dtype], dense.shape, ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size())


def size_of(state, name, dim, flag, given):
    """A size of the network, from the tensor that shows it or else from the command line."""
    tensor = state.get(name)
    if tensor is None or tensor.dim() <= dim:
        if given is None:
            raise ImportFailure(f"there is no tensor {name} that shows it, so {flag} is needed")
        return given
    if given is not None and given != tensor.shape[dim]:
        raise ImportFailure(f"{flag} is {given}, but {name} has shape {tuple(tensor.shape)}")
    return tensor.shape[dim]


def read_names(path):
    try:
        with open(path, encoding="utf-8-sig") as file:
            names = file.read().rstrip().splitlines()
    except (OSError, UnicodeError) as error:
        raise ImportFailure(f"--classes-file {path}: {error}")
    if "" in names:
        raise ImportFailure(f"--classes-file {path}: line {names.index('') + 1} is empty, which would shift the classes "
                            "behind it; remove it")
    return names


# ---- The command line.

def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [float(number) for number in text.split(",")]
    parser.add_argument("model", help="the name of the network, such as resnet50")
    parser.add_argument("-o", "--output", help="the file to write (default: MODEL.safetensors)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument("--weights", default="DEFAULT", help="which of torchvision's weights (default: %(default)s)")
    parser.add_argument("--pth", help="read this state dict instead of torchvision's weights")
    parser.add_argument("--classes-file", help="the names of the classes, one a line, in the order of the logits")
    parser.add_argument("--classes", type=int, help="the number of classes, where fc.weight does not show it")
    parser.add_argument("--channels", type=int, help="the number of channels, where conv1.weight does not show it")
    parser.add_argument("--mean", type=numbers, help="of each channel, pixels in [0, 1] (default: torchvision's, "
                        "else ImageNet's 0.485,0.456,0.406)")
    parser.add_argument("--std", type=numbers, help="of each channel (default: torchvision's, else ImageNet's 0.229,0.224,0.225)")
    parser.add_argument("--resize", type=int, help="scale the shorter side to this before the crop; 0 for no scaling "
                        "(default: torchvision's; needed with --pth)")
    parser.add_argument("--crop", type=int, help="the side of the square that is cropped from the centre "
                        "(default: torchvision's; needed with --pth)")
    options = parser.parse_args(arguments)
    if options.pth and (options.resize is None or options.crop is None):
        parser.error("--pth needs --resize and --crop: the file does not tell how its network was trained")
    return options


def run(options):
    output = options.output or options.model + ".safetensors"
    if os.path.lexists(output) and not options.overwrite:
        raise ImportFailure(f"{output} exists: --overwrite replaces it, -o names another file")
    if options.pth:
        state, card = load_pth(options.pth), {}
    else:
        state, card = load_torchvision(options.model, options.weights)
    card["model"] = options.model
    card["classes"] = size_of(state, "fc.weight", 0, "--classes", options.classes)
    card["channels"] = size_of(state, "conv1.weight", 1, "--channels", options.channels)
    if card["channels"] != 3 and not (options.mean and options.std):
        raise ImportFailure(f"the network takes {card['channels']} channels, so --mean and --std are needed")
    given = {"mean": options.mean, "std": options.std, "resize_size": options.resize, "input_size": options.crop,
             "class_names": read_names(options.classes_file) if options.classes_file else None}
    card |= {key: value for key, value in given.items() if value is not None}
    card = IMAGENET | {"class_names": []} | card
    metadata = metadata_of(card)
    write_safetensors(output, {name: raw(name, tensor) for name, tensor in complete(state).items()}, metadata)
    print(f"{output}: {len(state)} tensors, {card['classes']} classes"
          f"{'' if card['class_names'] else ' without names'}, pictures of {card['input_size']} pixels")


def main():
    try:
        run(parse(sys.argv[1:]))
    except (ImportFailure, OSError) as error:
        print("import_torchvision:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        print(f"import_torchvision: expected an installed PyTorch: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
