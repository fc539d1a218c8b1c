"""The contender PyTorch of benchmarks/compare: measures one workload, eager or compiled, in a process of its own. The
arguments are those of compare_tutti.cpp, and whether to compile. The protocol is described in contender.h."""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SGD = dict(lr=0.001, momentum=0.9, weight_decay=1e-4, fused=True)


class BasicBlock20(nn.Module):
    """A block of the networks for small images of He et al. (2015), with the shortcut of option A."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(y + x, inplace=True)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        stages = []
        for before, channels, stride in [(16, 16, 1), (16, 32, 2), (32, 64, 2)]:
            blocks = [BasicBlock20(before if i == 0 else channels, channels, stride if i == 0 else 1) for i in range(3)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class DoubleConv(nn.Module):
    def __init__(self, channels_in, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)), inplace=True)


class UNet(nn.Module):
    """examples/unet.h, for sizes that are multiples of 16."""

    def __init__(self, classes=21, width=64, levels=4):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(map(DoubleConv, [3, *widths], widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(DoubleConv(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = [self.down[0](x)]
        for down in self.down[1:]:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class Checkpointed(nn.Module):
    """Runs a block again in backward instead of keeping what is inside of it."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def checkpoint_blocks(model):
    model = getattr(model, "backbone", model)
    for name, stage in model.named_children():
        if name.startswith("layer"):
            setattr(model, name, nn.Sequential(*map(Checkpointed, stage)))


def make_model(name):
    if name == "resnet20":
        return ResNet20()
    if name == "unet":
        return UNet()
    import torchvision
    if name.startswith("fcn"):
        return getattr(torchvision.models.segmentation, name)(weights_backbone=None, num_classes=21)
    return getattr(torchvision.models, name)()


def load(arguments):
    from safetensors.torch import load_file
    model = make_model(arguments.model)
    model.load_state_dict(load_file(arguments.folder + "/weights.safetensors"))
    if arguments.checkpointed:
        checkpoint_blocks(model)
    tensors = load_file(arguments.folder + "/input.safetensors")
    images = tensors["images"].contiguous(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last), images, tensors["labels"]


def times_of(count, iteration):
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        iteration()
        seconds.append(time.perf_counter() - start)
    return seconds


def make_step(model, arguments, images, labels):
    model.train()
    for module in model.modules():  # its random numbers are not tutti's
        if isinstance(module, nn.Dropout):
            module.eval()
    sgd = torch.optim.SGD(model.parameters(), **SGD)
    called = torch.compile(model) if arguments.compiled else model

    def step():
        sgd.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.option == "bfloat16"):
            logits = called(images)
            loss = F.cross_entropy(logits["out"] if isinstance(logits, dict) else logits, labels)
        loss.backward()
        sgd.step()
        return loss.item()

    return step


def training(arguments):
    model, images, labels = load(arguments)
    step = make_step(model, arguments, images, labels)
    return [step() for _ in range(3)], lambda count: times_of(count, step)


def operation(arguments):
    """Forward and backward of one operation, as in compare_tutti.cpp."""
    from safetensors.torch import load_file
    tensors = load_file(arguments.folder + "/input.safetensors")
    x = tensors["images"].contiguous(memory_format=torch.channels_last).requires_grad_()
    up = nn.ConvTranspose2d(128, 64, 2, 2)
    if arguments.model == "conv_transpose":
        up.load_state_dict(load_file(arguments.folder + "/weights.safetensors"))
        up = up.to(memory_format=torch.channels_last)
    dy = torch.ones(4, 64, 128, 128).contiguous(memory_format=torch.channels_last)

    def forward(x):
        if arguments.model == "conv_transpose":
            return up(x)
        return F.cross_entropy(F.interpolate(x, scale_factor=8, mode="bilinear"), tensors["labels"])

    called = torch.compile(forward) if arguments.compiled else forward

    def run():
        x.grad = None
        up.zero_grad(set_to_none=True)
        y = called(x)
        y.backward(dy if y.dim() else None)
        return y.detach()

    return [run().square().mean().item(), x.grad.square().sum().item()], lambda count: times_of(count, run)


def inference(arguments):
    model, images, _ = load(arguments)
    model.eval()
    if arguments.how in ("ONNX Runtime", "OpenVINO"):
        from compare_runtime import classifier
        run = classifier(arguments.how, model, images, arguments.option)
        run()
        return run().flatten()[:16].tolist(), lambda count: times_of(count, run)
    if arguments.option == "bfloat16":
        model, images = model.bfloat16(), images.bfloat16()
    called = torch.compile(model) if arguments.compiled else model

    def run():
        with torch.no_grad():
            return called(images)

    run()
    return run().flatten()[:16].tolist(), lambda count: times_of(count, run)


class SyncNormalize(torch.autograd.Function):
    """Batch normalisation with statistics of all ranks, composed of PyTorch's operations and collectives, because
    PyTorch's own SyncBatchNorm takes no CPU tensors: one all-reduce of sums each way, as tutti does it."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        count = x.numel() // x.size(1) * dist.get_world_size()
        sums = torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))])
        dist.all_reduce(sums)
        mean = sums[0] / count
        var = sums[1] / count - mean * mean
        rstd = torch.rsqrt(var + eps)
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / (count - 1)), momentum)
        scale = weight * rstd
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.count = count
        return x * scale.view(1, -1, 1, 1) + (bias - mean * scale).view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        normalized = (x - mean.view(1, -1, 1, 1)) * rstd.view(1, -1, 1, 1)
        local = torch.stack([dy.sum((0, 2, 3)), (dy * normalized).sum((0, 2, 3))])
        total = local.clone()
        dist.all_reduce(total)
        total /= ctx.count
        dx = (dy - total[0].view(1, -1, 1, 1) - normalized * total[1].view(1, -1, 1, 1)) * (weight * rstd).view(1, -1, 1, 1)
        return dx, local[1], local[0], None, None, None, None


class ComposedSyncBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return SyncNormalize.apply(x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps)


def convert(model):
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            layer = ComposedSyncBatchNorm(child.num_features)
            layer.load_state_dict(child.state_dict())
            setattr(model, name, layer)
        else:
            convert(child)


def rank_worker(rank, arguments, connection):
    """A rank: answers counts that arrive through `connection` by losses of first steps or times."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model, images, labels = load(arguments)
    half = len(images) // 2
    images, labels = images[rank * half:(rank + 1) * half], labels[rank * half:(rank + 1) * half]
    if arguments.option == "sync":
        convert(model)
        model = model.to(memory_format=torch.channels_last)
    parallel = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    step = make_step(parallel, arguments, images.contiguous(memory_format=torch.channels_last), labels)
    connection.send([step() for _ in range(3)])
    while True:
        connection.send(times_of(connection.recv(), step))


def two_ranks(arguments):
    import torch.multiprocessing as multiprocessing
    context = multiprocessing.get_context("spawn")
    ends = []
    for rank in range(2):
        mine, theirs = context.Pipe()
        context.Process(target=rank_worker, args=(rank, arguments, theirs), daemon=True).start()
        ends.append(mine)

    def run(count):
        for end in ends:
            end.send(count)
        return [end.recv() for end in ends][0]

    return [end.recv() for end in ends][0], run


class Arguments:
    def __init__(self, kind, model, folder, option, how):
        self.kind, self.model, self.folder, self.option, self.how = kind, model, folder, option, how
        self.compiled = how in ("compile", "frozen")
        self.checkpointed = how == "checkpoint"
        if how == "frozen":  # an option of torch.compile for inference: folds batch norm and packs weights
            import torch._inductor.config as inductor
            inductor.freezing = True
        self.port = 20000 + os.getpid() % 20000


def main():
    arguments = Arguments(*sys.argv[1:])
    kinds = {"train": training, "infer": inference, "ranks": two_ranks, "operation": operation}
    outputs, run = kinds[arguments.kind](arguments)
    print("ready", *outputs, flush=True)
    for line in sys.stdin:
        print(*run(int(line)), flush=True)


if __name__ == "__main__":
    main()
