#!/usr/bin/env python3
"""Makes docs/reference.md: every operation, layer, loss, optimizer, transform and tool of the public headers, with its
options and PyTorch's name, from the declarations and their `///` comments.

    docs/reference.py            fails where docs/reference.md is not that of the headers
    docs/reference.py --write    writes it

A new name of the headers appears by itself, under the name that it has in PyTorch unless NAMES says otherwise.
"""
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference.md"

INTRODUCTION = """\
# Reference

Everything that a program calls, from the public headers: names, arguments or options with their defaults, PyTorch's
name and the first sentence of the comment. `docs/reference.py --write` makes this page; `docs/api.sh` makes the whole
comments into HTML. An argument in braces is a struct of options: `nn::Linear({.in = 2, .out = 32})`. Names of layers,
functions of layers and networks are in `nn::`, optimizers in `optim::`, data and transforms in `data::`, ranks in
`distributed::`. [from_pytorch.md](from_pytorch.md) says what behaves differently and what is absent.
"""

# Title, how PyTorch's names begin ("" where NAMES has them all, None for a table without them), pattern of the headers.
SECTIONS = [
    ("Tensors: members", "Tensor.", r"core/tensor\.h"),
    ("Tensors: making, saving, sharing", "torch.", r"core/(create|dlpack|state_dict|random)\.h"),
    ("Operations", "torch.", r"autograd/(functions|indexing|matmul)\.h"),
    ("Operations of layers", "F.", r"nn/(functional/.*|batch_norm/functional)\.h"),
    ("Autograd", "", r"autograd/(grad_mode|gradcheck|record)\.h"),
    ("Layers and losses", "nn.",
     r"nn/((?!init|model_card|predictor|resnet|segmentation)\w+|batch_norm/(layer|sync_batch_norm))\.h"),
    ("Batch norm of whole models", "", r"nn/batch_norm/(?!layer|functional|sync_batch_norm\.).*\.h"),
    ("Networks and inference", "", r"nn/(models/.*|resnet|segmentation|model_card|predictor)\.h"),
    ("Initialisation", "nn.init.", r"nn/init\.h"),
    ("Optimizers and schedules", "optim.", r"optim/.*\.h"),
    ("Data", None, r"data/(?!transforms).*\.h"),
    ("Transforms", "", r"data/transforms/.*\.h"),
    ("Ranks", None, r"distributed/(agreement|broadcast_text|functional|metric_sums|process_group|run_state|"
     r"data_parallel/(?!reducer|buckets|parameter).*|diagnostics/.*)\.h"),
    ("CUDA", None, r"core/cuda/(graph|runtime|settings|stream)\.h"),
    ("Other tools", None, r"core/(trace|parallel|version|atomic_file|hash)\.h"),
]

# PyTorch's names where they are not the same, each behind the name here; "-" for none.
NAMES = dict(line.split(": ", 1) for line in """\
Autocast: torch.autocast
BasicBlock: torchvision.models.resnet.BasicBlock
Bottleneck: torchvision.models.resnet.Bottleneck
ASPP: torchvision.models.segmentation.deeplabv3.ASPP
CapturedStep: torch.cuda.make_graphed_callables
Child: -
ConfusionMatrix: -
CenterCrop: transforms.CenterCrop
CutMix: transforms.v2.CutMix
DeepLabV3: torchvision.models.segmentation.DeepLabV3
EnableGrad: torch.enable_grad
ExponentialMovingAverage: optim.swa_utils.AveragedModel
FCN: torchvision.models.segmentation.FCN
GradScaler: torch.amp.GradScaler
LARS: -
Layer: -
LayerWith: -
MixUp: transforms.v2.MixUp
NoGrad: torch.no_grad
Normalize: transforms.Normalize
OptimizerWith: -
RandomCrop: transforms.RandomCrop
RandomHorizontalFlip: transforms.RandomHorizontalFlip
RandomResizedCrop: transforms.RandomResizedCrop
ReduceOnPlateau: lr_scheduler.ReduceLROnPlateau
ResNet: torchvision.models.ResNet
Resize: transforms.Resize
Saved: ctx.save_for_backward
Scheduler: lr_scheduler.LambdaLR
SpatialOption: -
TwoInputLayer: -
adaptive_avg_pool: F.adaptive_avg_pool1d, 2d, 3d
alias: as_strided
avg_pool: F.avg_pool1d, 2d, 3d
center_crop: functional.center_crop
clip_grad_norm: nn.utils.clip_grad_norm_
conv_transpose: F.conv_transpose1d, 2d, 3d
convert_sync_batchnorm: nn.SyncBatchNorm.convert_sync_batchnorm
convolution: F.conv1d, 2d, 3d
cosine: lr_scheduler.CosineAnnealingLR
crop: functional.crop
data: data_ptr
default_: -
defined: -
erase: functional.erase
fold_batch_norm: torch.nn.utils.fuse_conv_bn_eval
freeze: requires_grad_(False)
grad_enabled: torch.is_grad_enabled
gradcheck: torch.autograd.gradcheck
has_overlapping_elements: -
horizontal_flip: functional.hflip
id: id
is_dense: -
is_exclusive: -
is_same: is
leaky_relu: F.leaky_relu
linear_warmup: lr_scheduler.LinearLR
load_safetensors: torch.load
masked_fill: Tensor.masked_fill
matches: fnmatch.fnmatch
max: torch.max, torch.amax
max_pool: F.max_pool1d, 2d, 3d
memory_format: -
min: torch.min, torch.amin
multi_step: lr_scheduler.MultiStepLR
normalize: functional.normalize
offset: storage_offset
one_cycle: lr_scheduler.OneCycleLR
one_hot: F.one_hot
pack_weights: -
pad: F.pad
poly: lr_scheduler.PolynomialLR
rank: dim, ndim
raw: data_ptr
recompute_statistics: torch.optim.swa_utils.update_bn
record: torch.autograd.Function
resize: functional.resize
resnet: torchvision.models.resnet50(), ...
save_safetensors: torch.save
scalar: torch.tensor
segmentation_network: torchvision.models.segmentation.fcn_resnet50(), ...
set_data: data =
set_exact_convolutions: -
set_grad: grad =
set_recompute_output: inplace_abn.InPlaceABN
slice: x[a:b]
step_decay: lr_scheduler.StepLR
storage: untyped_storage
strides: stride
sum_to: Tensor.sum_to_size
to_dlpack: torch.utils.dlpack.to_dlpack
to_string: str
to_vector: Tensor.tolist""".split("\n"))

# Base classes of which a program uses the derived ones. Their comments and options serve those.
BASES = set("ActivationLayer AdamMethod AvgPool BatchNorm Conv ConvTranspose InstanceNorm Loss MaxPool ModuleSequence "
            "SegmentationNetwork".split())
# What the headers declare for the library itself, or for the function that takes or returns it.
HIDDEN = BASES | set("""
    Activation Backend BatchNormArgs Box Cosine InjectedError InputDims Kaiming LinearWarmup LoadReport Method MultiStep
    NumberRange OneCycle
    OptimizerState OptionMember ParameterGroup ParameterUpdate Properties RandomKey RandomState ReferenceBatchNorm Settings
    StepDecay Traffic Windows add_async allocator apply_transforms autocast autocast_dtype carry_out
    compute_deferred_gradients copy_bytes current_operation draw_beta expect_probability fan_of frees_saved_tensors inject merge
    meta name_thread needs_grad own_replaceable pool_options read_environment record_node set_meta without_wrapper_prefix
    zero_bytes""".split())

TYPE = re.compile(r"(?:template <.*?> )?(class|struct) (?:\[\[nodiscard\]\] )?(\w+)(?: final)?(?: : (.*))?$")
QUALIFIERS = re.compile(r"^(?:(?:template <[^>]*>|inline|constexpr|\[\[nodiscard\]\]|explicit) )+")
NO_FUNCTION = re.compile(r"(using|friend|class|struct|enum|typedef|static_assert|extern)\b")


@dataclass
class Declaration:
    """A type or function: the names of what it stands in, its text with single blanks, and its comment by lines."""
    scope: list
    text: str
    comment: list
    is_public: bool

    def type(self):
        return TYPE.match(self.text)

    def function(self):
        """Returns the name of a function, or nothing."""
        text = QUALIFIERS.sub("", self.text)
        if "(" not in text or NO_FUNCTION.match(text):
            return ""
        found = re.search(r"\((\w+)\)\(|(\boperator[^\w\s(]+|\b\w+)\(", text)  # (max)(x), where macros may be
        return found[1] or found[2] if found else ""


@dataclass
class Parser:
    """Finds the declarations of a header that follows .clang-format. Bodies of functions are passed over."""
    found: list = field(default_factory=list)
    scopes: list = field(default_factory=list)   # (name, whether its members are public)
    text: str = ""                               # of the declaration that is being read
    comment: list = field(default_factory=list)  # the /// lines above it
    parentheses: int = 0
    braces: int = 0                              # of the body or initialiser that is being read
    is_body: bool = False

    def read(self, header):
        for line in header.split("\n"):
            if line.lstrip().startswith("#"):
                continue
            plain = re.sub(r'"(\\.|[^"])*"', lambda m: "_" * len(m[0]), line)  # "//" in a string is no comment
            code = line[:plain.index("//")] if "//" in plain else line
            comment = line[len(code):]
            for piece in re.split(r"([{};()])", code + "\n"):
                self.take(piece)
            if comment.startswith("///<") and self.found and not self.text.strip():
                self.found[-1].comment.append(comment[4:].strip())
            elif comment.startswith("///") and not self.text.strip() and not self.braces:
                self.comment.append(re.sub("^ ", "", comment[3:].rstrip()))
        return self.found

    def take(self, piece):
        if self.braces:
            self.braces += (piece == "{") - (piece == "}")
            self.text += piece if not self.is_body else ""
            if not self.braces and self.is_body:
                self.finish()
        elif piece == "{":
            self.open()
        elif piece == "}":
            self.scopes.pop()
            self.text, self.comment = "", []
        elif piece == ";" and not self.parentheses:
            self.finish()
        else:
            self.parentheses += (piece == "(") - (piece == ")")
            label = re.match(r"\s*(public|private|protected):", piece)
            if label:
                self.scopes[-1] = (self.scopes[-1][0], label[1] == "public")
            self.text += piece[label.end():] if label else piece

    def open(self):
        head = " ".join(self.text.split())
        namespace = re.match(r"(?:inline )?namespace ?([\w:]*)$", head)
        if namespace:
            self.scopes.append((namespace[1], True))
            self.text, self.comment = "", []
        elif TYPE.match(head) and not self.parentheses:
            self.finish(is_definition=True)
            self.scopes.append((TYPE.match(head)[2], TYPE.match(head)[1] == "struct"))
        else:  # a default argument, an initialiser, or the body of a function
            self.is_body = not self.parentheses and not head.endswith("=") and ("(" in head or head.startswith("enum"))
            self.braces = 1
            self.text += "{" if not self.is_body else ""

    def finish(self, is_definition=False):
        text = " ".join(self.text.split())
        if text and (is_definition or not TYPE.match(text)):  # a type that is only declared stands elsewhere
            is_public = all(public for _, public in self.scopes)
            self.found.append(Declaration([name for name, _ in self.scopes], text, self.comment, is_public))
        self.text, self.comment = "", []


def split_list(text):
    """Splits at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def variable(text):
    """Returns the name of an argument or a member with its default, or nothing for a type without a name."""
    text, _, default = text.partition("=")
    braces = re.search(r"\{(.+)\}\s*$", text)
    if braces and not default:
        text, default = text[:braces.start()], braces[1]
    while re.search(r"<[^<>]*>", text):  # arguments of templates
        text = re.sub(r"<[^<>]*>", "", text)
    if re.fullmatch(r"[\w:]+[&*]?", text.strip()):
        return ""
    name = re.search(r"(\w*)[\s\[\]\d]*$", text)[1]
    default = re.sub(r"^(\w+::)+", "", default.strip())  # of enumerators
    return name + (f" = {default}" if default not in ("", "{}") else "")


def arguments(text):
    begin = re.search(r"\(\w+\)\(|(\boperator[^\w\s(]+|\b\w+)\(", text).end()
    end, depth = begin, 1
    while depth:
        depth += (text[end] == "(") - (text[end] == ")")
        end += 1
    return [a for a in map(variable, split_list(text[begin:end - 1])) if a]


def first_sentence(comment):
    text = "\n".join(comment).replace("@overload", "").strip()
    text = re.split(r"(?<=[:.,;])\n(?=- |  )|\n\n", text)[0]  # without a list or code
    text = re.split(r"(?<!\b[A-Z])\.(?=\s+[A-Z`({]|$)", " ".join(text.split()))[0]
    return text.rstrip(".:; ").replace("|", "\\|").replace("<", "&lt;")


def in_braces(options):
    return "{" + ", ".join("." + option for option in options) + "}"


class Headers:
    """The declarations of all public headers, and what classes and options consist of."""

    def __init__(self):
        listed = subprocess.run(["cmake", "-P", "cmake/public_headers.cmake"], cwd=ROOT, check=True, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        self.files = {path: Parser().read((ROOT / path).read_text()) for path in listed.split() if path.endswith(".h")}
        self.bases, self.comments, self.members = {}, {}, {}
        for path, declarations in self.files.items():
            for d in declarations:
                if d.type() and not path.startswith("kernels/") and not d.scope[-1][:1].isupper():  # in no other type
                    self.bases.setdefault(d.type()[2], re.findall(r"\w+", d.type()[3] or ""))
                    self.comments.setdefault(d.type()[2], d.comment)
                if d.is_public and d.scope:
                    self.members.setdefault(d.scope[-1], []).append(d)

    def fields(self, options, owner=None):
        """Returns the members of a struct of options with their defaults."""
        found = [f for base in self.bases.get(options, []) if re.search("Options|Args", base) for f in self.fields(base)]
        for d in self.members.get(options, []):
            if owner in (None, d.scope[-2]) and "(" not in d.text.split("=")[0] and not NO_FUNCTION.match(d.text):
                first, *others = split_list(d.text)  # height = 32, width = 32
                found += filter(None, [variable(first)] + [variable("auto " + o) for o in others])
        return found

    def options_of(self, name):
        """Returns the options that a class takes: its own, or those of a base, or of its constructor."""
        if any(d.text == "struct Options" for d in self.members.get(name, [])):
            return self.fields("Options", name)
        for base in self.bases.get(name, []):
            options = self.fields(base) if base.endswith("Options") else []
            if not options and base in self.bases and base not in ("Layer", "Module", name):
                options = self.options_of(base)
            if options:
                return options
        for text in self.constructors(name):
            for options in re.findall(r"\w+Options\b", text):
                return self.fields(options)
        return []

    def constructors(self, name):
        own = [d.text for d in self.members.get(name, []) if d.function() == name]
        return [t for t in own if not re.search(rf"= delete|const {name}&|{name}&&|Options{{}}", t)]

    def construction(self, name):
        """Returns the arguments of a class's longest constructor, with its options in braces."""
        options = self.options_of(name)
        values = arguments(max(self.constructors(name), key=len)) if self.constructors(name) else []
        if options:
            values = [in_braces(options) if v.split(" ")[0] == "options" else v for v in values]
            values = values if in_braces(options) in values else [in_braces(options)]
        return values

    def call(self, d):
        """Returns the arguments of a function, with its options in braces, and the name of the options."""
        values = arguments(d.text)
        found = re.search(r"(?:(\w+)::)?(\w+)[ &]+(?:options|args)\b(?: = \{(.*?)\})?", d.text)
        options = self.options_of(found[1]) if found and found[1] else self.fields(found[2]) if found else []
        if options:
            given = {text.split("=")[0].strip(" ."): text for text in split_list(found[3] or "")}  # {.dtype = int64}
            options = [variable("auto " + given[o.split(" ")[0]][1:]) if o.split(" ")[0] in given else o for o in options]
            values = [in_braces(options) if v.split(" ")[0] in ("options", "args") else v for v in values]
        return values, found[2] if found else ""


def entry(headers, d):
    """Returns name, form and comment of a declaration at namespace scope, or nothing where it has no row."""
    alias = re.match(r"using (\w+) = (\w+)<", d.text)
    if d.type() and not d.type()[2].endswith("Options"):
        name = d.type()[2]
        comment = first_sentence(d.comment)
        base = next((b for b in headers.bases[name] if b in BASES), "")
        if base and re.match("Maps|Takes", comment):
            comment = first_sentence(headers.comments[base]) + ". " + comment
        values = headers.construction(name)
        form = f"{name}({', '.join(values)})" if values or d.type()[1] == "class" else name
        return (name, form, comment) if d.comment else None
    if alias and alias[2] in BASES:
        options = headers.options_of(alias[2])
        return alias[1], f"{alias[1]}({in_braces(options) if options else ''})", first_sentence(d.comment)
    name = d.function()
    if not name:
        return None
    values, options = headers.call(d)
    comment = first_sentence(d.comment)
    if "of these options" in comment:
        comment = first_sentence(headers.comments[options])
    if name.startswith("operator"):
        sign = name[len("operator"):]
        return name, f"{sign}x" if len(values) == 1 else f"a {sign} b", comment
    spaces = [s for s in "::".join(d.scope).split("::") if s not in ("", "tutti", "nn", "optim", "data", "distributed")]
    name = "::".join(spaces + [name])
    return name, f"{name}({', '.join(values)})", comment


def entries(headers, pattern):
    for path, declarations in headers.files.items():
        for d in declarations if re.fullmatch(pattern, path) else []:
            plain = d.type()[2] if d.type() else d.function()
            if not d.is_public or plain in HIDDEN or "detail" in "::".join(d.scope):
                continue
            if path == "core/tensor.h":
                if d.scope[-1] == "Tensor" and plain[:8] == "operator" and plain != "operator=":
                    form = "x[index]" if plain == "operator[]" else f"x {plain[8:]} y"
                    yield plain, form, first_sentence(d.comment)
                elif d.scope[-1] == "Tensor" and plain not in ("", "Tensor") and not plain.startswith("operator"):
                    yield plain, f"x.{plain}({', '.join(arguments(d.text))})", first_sentence(d.comment)
            elif not any(s in headers.bases for s in d.scope) and plain != "to_string":
                yield from filter(None, [entry(headers, d)])


def table(headers, prefix, pattern):
    forms, comments = {}, {}
    for name, form, comment in entries(headers, pattern):
        forms.setdefault(name, {})[form] = True  # a set in the order of the headers
        comments[name] = comments.get(name) or comment
    yield "| tutti | |" if prefix is None else "| tutti | PyTorch | |"
    yield "| --- | --- |" if prefix is None else "| --- | --- | --- |"
    for name in forms:
        plain = name.split("::")[-1]
        theirs = NAMES.get(plain, prefix and prefix + plain)
        theirs = "the same" if plain.startswith("operator") else f"`{theirs}`" if theirs not in ("-", "", None) else ""
        here = "; ".join(f"`{form}`" for form in forms[name]).replace("|", "\\|")
        yield f"| {here} | {comments[name]} |" if prefix is None else f"| {here} | {theirs} | {comments[name]} |"


headers = Headers()
made = INTRODUCTION
for title, prefix, pattern in SECTIONS:
    made += "\n".join(["", f"## {title}", "", *table(headers, prefix, pattern), ""])
if sys.argv[1:] == ["--write"]:
    PAGE.write_text(made)
elif not PAGE.exists() or PAGE.read_text() != made:
    sys.exit("reference: docs/reference.md is not that of the headers; run docs/reference.py --write")
else:
    print(f"reference: docs/reference.md lists {len(re.findall('(?m)^[|] .`?', made))} rows of names of the public headers")
