#!/usr/bin/env python3
"""The U-Net of Lockstep in PyTorch, with the same names of parameters, and a timer of the training step of this network
or of one of torchvision's (--network fcn_resnet50, say).

tests/oracle uses the network as an independent reference; tools/measure/bench_vs_torch runs this file:
    python3 torch_unet.py --width 16 --depth 4 --batch 8 --size 176 240 --format channels_last
prints one JSON object with the milliseconds of every timed step and the peak memory of the process in these steps; on a
GPU also the most that PyTorch's tensors took of its memory, and what the whole process has of it in the end. With
--eval a step is an evaluation without gradients: the forward pass, whose milliseconds come beside, the confusion matrix and
the loss. With --processes N the step is DistributedDataParallel's: N processes share the batch and the threads, talk by gloo,
and have BatchNorm statistics of their own; the times are those of process 0, the memory is the sum of all.
"""
import argparse
import json
import pathlib
import resource
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn


class ChunkedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm as `chunks` devices with per-device statistics compute it; the first feeds the running ones."""

    chunks = 1

    def forward(self, x):
        if not self.training or self.chunks == 1:
            return super().forward(x)
        parts = x.chunk(self.chunks)
        first = super().forward(parts[0])
        rest = [F.batch_norm(p, None, None, self.weight, self.bias, True, 0.0, self.eps) for p in parts[1:]]
        return torch.cat([first, *rest])


class Block(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.bn = ChunkedBatchNorm2d(out_channels)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class UNet(nn.Module):
    def __init__(self, width, depth, num_classes):
        super().__init__()
        widths = [width << k for k in range(depth)]
        inputs = [3] + widths[:-1]
        self.encoder = nn.ModuleList(
            nn.Sequential(Block(i, o), Block(o, o)) for i, o in zip(inputs, widths))
        self.decoder = nn.ModuleList(
            nn.Sequential(Block(3 * o, o), Block(o, o)) for o in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x):
        skips = []
        for k, stage in enumerate(self.encoder):
            x = stage(x if k == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for stage, skip in zip(self.decoder, reversed(skips[:-1])):
            up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = stage(torch.cat([skip, up], 1))
        return self.head(x)


class OutputOnly(nn.Module):
    """A segmentation network of torchvision without its dictionary."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)["out"]


def make_network(args):
    """The network, and whether its labels are of whole images."""
    if args.network == "unet":
        return UNet(args.width, args.depth, args.classes), False
    import torchvision
    if "_" in args.network and not args.network.startswith("resnext"):
        make = getattr(torchvision.models.segmentation, args.network)
        return OutputOnly(make(weights=None, weights_backbone=None, num_classes=args.classes, aux_loss=False)), False
    return getattr(torchvision.models, args.network)(num_classes=args.classes), True


def make_sgd(net, lr, momentum, weight_decay, norm_weight_decay):
    norm = [p for m in net.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    ids = {id(p) for p in norm}
    other = [p for p in net.parameters() if id(p) not in ids]
    groups = [{"params": other, "weight_decay": weight_decay},
              {"params": norm, "weight_decay": norm_weight_decay}]
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


def loss_of(net, images, labels, class_weight=None, amp=False):
    """Cross-entropy; with `amp` under autocast to bf16. Every weight is cast once a step, so a cache would not help."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=amp, cache_enabled=False):
        return F.cross_entropy(net(images), labels, weight=class_weight, ignore_index=255)


def train_step(net, optimizer, images, labels, class_weight=None, amp=False):
    optimizer.zero_grad()
    loss = loss_of(net, images, labels, class_weight, amp)
    loss.backward()
    optimizer.step()
    return loss


def read_late(work, device):
    """A function that does the step and reads the loss: on a GPU that of the step before, so that the host never waits for the
    step that it has just issued."""
    if device == "cpu":
        return lambda: work().item()
    losses = torch.empty(2, pin_memory=True)
    copied = [torch.cuda.Event(), torch.cuda.Event()]
    steps = 0

    def step():
        nonlocal steps
        losses[steps % 2].copy_(work().detach(), non_blocking=True)
        copied[steps % 2].record()
        steps += 1
        if steps > 1:
            copied[steps % 2].synchronize()
        return losses[steps % 2].item()
    return step


def captured_step(net, optimizer, images, labels, amp):
    """The training step as a CUDA graph: a function that runs it on what `images` and `labels` hold then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # momentum and library workspaces must be there before the capture
        for _ in range(3):
            train_step(net, optimizer, images, labels, amp=amp)
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)  # the capture makes gradients of its own, which every replay overwrites
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = loss_of(net, images, labels, amp=amp)
        loss.backward()
        optimizer.step()

    def replay():
        graph.replay()
        return loss
    return replay


def host_batch(images, labels):
    """A function that takes the batch, which a stream of its own has copied from pinned host memory during the step before, as a
    data loader's prefetching does."""
    host_images = images.cpu().contiguous(memory_format=torch.channels_last).pin_memory()
    host_labels = labels.to(torch.uint8).cpu().pin_memory()
    staged_images, staged_labels = torch.empty_like(images), torch.empty_like(labels, dtype=torch.uint8)
    side, staged, taken = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    def stage():
        with torch.cuda.stream(side):
            side.wait_event(taken)
            staged_images.copy_(host_images, non_blocking=True)
            staged_labels.copy_(host_labels, non_blocking=True)
            staged.record(side)

    def upload():
        torch.cuda.current_stream().wait_event(staged)
        images.copy_(staged_images)
        labels.copy_(staged_labels)
        taken.record()
        stage()
    stage()
    return upload


def evaluation(net, images, labels, classes):
    """A function that evaluates the batch and returns the milliseconds of its forward pass."""
    net.eval()

    def evaluate():
        with torch.no_grad():
            start = time.perf_counter()
            logits = net(images)
            forward = 1000 * (time.perf_counter() - start)
            torch.bincount((labels * classes + logits.argmax(1)).flatten(), minlength=classes * classes)
            F.cross_entropy(logits, labels, ignore_index=255, reduction="sum").item()
        return forward
    return evaluate


def forget_peak_memory():
    """Linux: the peak is that from here on. Where it is not allowed the peak is the process's."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_memory():
    """Bytes, since forget_peak_memory()."""
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def device_memory(device):
    """Bytes of a GPU: the most that tensors took, and what is taken now, by the context and PyTorch's cache as well."""
    if device == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"peak_device_bytes": torch.cuda.max_memory_allocated(), "taken_device_bytes": total - free}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="unet", help="or a network of torchvision: fcn_resnet50, resnet50, ...")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--classes", type=int, default=11)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, nargs=2, default=[176, 240], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--format", choices=["contiguous", "channels_last"], default="channels_last")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tf32", action="store_true", help="convolutions and matrix products in TF32, which stays off otherwise")
    parser.add_argument("--amp", action="store_true", help="autocast to bf16")
    parser.add_argument("--compile", action="store_true", help="the network through torch.compile")
    parser.add_argument("--max-autotune", action="store_true", help="with --compile: its mode that tries most")
    parser.add_argument("--processes", type=int, default=1, help="of DistributedDataParallel over gloo (on the CPU)")
    parser.add_argument("--sync-batch-norm", action="store_true", help="with --processes: SyncBatchNorm")
    parser.add_argument("--graph", action="store_true", help="the step as a CUDA graph")
    parser.add_argument("--upload", action="store_true", help="copy the batch from pinned host memory in every step")
    parser.add_argument("--eval", action="store_true", help="evaluate instead of training (on the CPU)")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--iters", type=int, default=10)
    return parser.parse_args()


def make_step(args, threads, batch):
    """A function that does one step on a batch of this size; an evaluation returns the milliseconds of its forward pass."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.backends.cudnn.benchmark = True
    net, of_images = make_network(args)
    net = net.to(args.device)
    images = torch.randn(batch, 3, *args.size, device=args.device)
    if args.format == "channels_last":
        net = net.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    shape = (batch,) if of_images else (batch, *args.size)
    labels = torch.randint(0, args.classes, shape, device=args.device)
    if args.sync_batch_norm:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    optimizer = make_sgd(net, 0.01, 0.9, 1e-4, 0.0)
    if args.processes > 1:
        net = nn.parallel.DistributedDataParallel(net)
    if args.compile:
        net = torch.compile(net, mode="max-autotune" if args.max_autotune else None)
    upload = host_batch(images, labels) if args.upload else lambda: None
    if args.eval:
        work = evaluation(net, images, labels, args.classes)
    elif args.graph:
        work = read_late(captured_step(net, optimizer, images, labels, args.amp), args.device)
    else:
        work = read_late(lambda: train_step(net, optimizer, images, labels, amp=args.amp), args.device)

    def step():
        upload()
        return work()
    return step


def time_steps(args, step):
    """The results of all timed steps as they are printed."""
    steps, forward = [], []
    for i in range(args.warmup + args.iters):
        if i == args.warmup:
            forget_peak_memory()
        start = time.perf_counter()
        result = step()
        if i >= args.warmup:
            steps.append(1000 * (time.perf_counter() - start))
            forward += [result] if args.eval else []
    return {"torch": torch.__version__, "device": args.device, "format": args.format, "amp": args.amp, "compile": args.compile,
            "graph": args.graph, "threads": args.threads, "processes": args.processes, "steps_ms": steps,
            "forward_ms": forward, "peak_rss_bytes": peak_memory(), "tf32": args.tf32, **device_memory(args.device)}


def run_rank(rank, args, meeting_file):
    """One process of DistributedDataParallel; process 0 prints."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{meeting_file}", rank=rank, world_size=args.processes)
    step = make_step(args, max(1, args.threads // args.processes), args.batch // args.processes)
    result = time_steps(args, step)
    memory = torch.tensor([float(result["peak_rss_bytes"])], dtype=torch.float64)
    dist.all_reduce(memory)
    if rank == 0:
        print(json.dumps(result | {"peak_rss_bytes": int(memory.item())}), flush=True)
    dist.destroy_process_group()


def main():
    args = parse_arguments()
    if args.processes == 1:
        print(json.dumps(time_steps(args, make_step(args, args.threads, args.batch))))
        return
    import torch.multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (args, pathlib.Path(folder) / "meeting"), nprocs=args.processes)


if __name__ == "__main__":
    main()
