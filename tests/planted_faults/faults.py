"""The faults that planted_faults.py plants. Each replaces a text that is in its file exactly once.

They are the mistakes that kernels and exchanges are known for: a barrier left out, an index or a bound off by one, a
term that is missing from a formula, two ranks exchanged, an event that nobody waits for.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    what: str
    file: str  # where it is, from the root of the project
    old: str
    new: str
    cases: str  # doctest's pattern of the test cases that must fail
    test: str = "test_kernels"
    source: str = ""  # what is compiled where `file` is a header


MOMENTS = "kernels/operations/batch_norm_moments.cu"
BACKWARD = "kernels/operations/batch_norm_backward.cu"
FORWARD = "kernels/operations/batch_norm_forward.cu"
CHANNELS = "kernels/operations/batch_norm_channels.h"
OPTIMIZER = "kernels/operations/optimizer.cu"
FORMULAS = "src/backend/formulas.h"
WEIGHTS = "kernels/operations/weights.cu"
CONVOLUTION = "kernels/cudnn/cudnn_convolution.cpp"
UPSAMPLE = "kernels/operations/upsample.cu"
EVENT = "kernels/transport/event_transport.cpp"

FAULTS = [
    Fault("BatchNorm's moments: no __syncthreads() between writing the base and reading it", MOMENTS,
          "  __syncthreads();\n  shared.count[threadIdx.x]", "  shared.count[threadIdx.x]",
          "the bits depend neither on the order of threads*"),
    Fault("a block's reduction: no __syncthreads() between its halvings", "kernels/primitives/reduce.h",
          "    __syncthreads();\n    const int mine", "    const int mine",
          "a replica without rows*", source=MOMENTS),
    Fault("BatchNorm's moments: one row too many of an incomplete run", MOMENTS,
          "if (kPartial && i >= rows) break;", "if (kPartial && i > rows) break;",
          "BatchNorm kernels match the reference with every option*"),
    Fault("a sweep from the end of a tensor: begins one row behind it", "kernels/primitives/channel_slabs.h",
          "slabs.rows - 1 - thread.first", "slabs.rows - thread.first",
          "the BatchNorm kernels agree with the CPU", source=MOMENTS),
    Fault("Chan's merge: without the term of the means' difference", MOMENTS,
          "shared.m2[v][b] + delta * delta * (na * share);", "shared.m2[v][b];",
          "the BatchNorm kernels agree with the CPU"),
    Fault("BatchNorm's forward pass: the first replica's statistics are left out", FORWARD,
          "      if (s == 0) {", "      if (s <= 1) {",
          "BatchNorm kernels match the reference with every option*"),
    Fault("slots of replicas: those after the first eight are left out", CHANNELS,
          "begin < slots.size; begin += kAtOnce", "begin < 1; begin += kAtOnce",
          "slots of any number of replicas*", source=FORWARD),
    Fault("slots of replicas: a slot's weight is that of the one before it", FORWARD,
          "slots.weights[s]", "slots.weights[s - 1]", "slots of any number of replicas*"),
    Fault("BatchNorm's moments: start early and do not wait for the kernel before", MOMENTS,
          "  wait_for_previous_kernel();\n", "", "kernels may start early*"),
    Fault("BatchNorm's backward pass: without the mean of the gradient", BACKWARD,
          " - constants.mean_gradient[v] - centred", " - centred", "the BatchNorm kernels agree with the CPU"),
    Fault("max-pooling backward: a window below the last row of an odd height", "kernels/operations/pooling_windows.h",
          "y < out.height ? y + 1 : y", "y <= out.height ? y + 1 : y", "pooling has the CPU's bits*",
          source="kernels/operations/max_pool.cu"),
    Fault("upsampling backward: the last reader of an input pixel is left out", UPSAMPLE,
          "return source.low > i;", "return source.low >= i;", "interpolation has the CPU's bits"),
    Fault("division by multiplication: the multiplier is rounded down", "kernels/primitives/divisor.h",
          "(gap << 32) / d + 1", "(gap << 32) / d", "interpolation has the CPU's bits", source=UPSAMPLE),
    Fault("copies of strided rows: the second row begins where the first ends", "kernels/operations/pointwise.cu",
          "to[row * to_stride + unit]", "to[row * rows.packs + unit]", "copy and fill take any*"),
    Fault("the optimizer: gradients of ranks 1 and 2 are added in exchanged order", OPTIMIZER,
          "replicas.grads[rank] + at",
          "replicas.grads[replicas.ranks > 2 && (rank == 1 || rank == 2) ? 3 - rank : rank] + at",
          "the optimizer has the CPU's bits*"),
    Fault("the optimizer: the last rank's weights are not written", OPTIMIZER,
          "rank < replicas.ranks; ++rank) {\n    store_at_once",
          "rank < replicas.ranks - 1; ++rank) {\n    store_at_once",
          "the optimizer has the CPU's bits*"),
    Fault("the optimizer: a pack that begins before its range is taken whole", OPTIMIZER,
          "at >= range.begin && at + kWidth <= range.end", "at + kWidth <= range.end",
          "the optimizer has the CPU's bits*"),
    Fault("the optimizer: a range's first chunk is taken for the last one of the range before", OPTIMIZER,
          "first_chunk <= chunk ? low", "first_chunk < chunk ? low", "many ranges at once*"),
    Fault("the optimizer: a range has its neighbour's multiplier of the learning rate", OPTIMIZER,
          "lr * range.lr_scale", "lr * ranges.items[ranges.count > 1 && range.first_chunk == 0 ? 1 : 0].lr_scale",
          "a range's learning rate*"),
    Fault("AdamW: no bias correction of the mean", FORMULAS,
          "static_cast<float>(1 / bias_correction(rule.beta1, t))", "1", "the optimizer sums the ranks*",
          source=OPTIMIZER),
    Fault("AdamW: no bias correction of the squares", FORMULAS,
          "static_cast<float>(1 / std::sqrt(bias_correction(rule.beta2, t)))", "1", "the optimizer sums the ranks*",
          source=OPTIMIZER),
    Fault("AdamW: steps that were left out count as updates", FORMULAS,
          "(rule.skipped == nullptr ? 0 : *rule.skipped)", "0", "AdamW counts its updates*", source=OPTIMIZER),
    Fault("AdamW: nobody waits for what one thread computes for its block", OPTIMIZER,
          "shared = element_of(rule);\n    __syncthreads();", "shared = element_of(rule);",
          "the optimizer has the CPU's bits*"),
    Fault("the squared norm: a block's chunks have one place for their sums", OPTIMIZER,
          "norm.partials[chunk] = sum", "norm.partials[blockIdx.x] = sum", "a squared norm's bits*"),
    Fault("weights: no __syncthreads() before the next tile overwrites the last one", WEIGHTS,
          "    __syncthreads();  // the next tile", "    // the next tile", "transposition of every shape*"),
    Fault("weights: a tile is looked for in the matrices before it", WEIGHTS,
          "first_tile <= tile ? low", "first_tile < tile ? low", "many transpositions at once*"),
    Fault("convolutions: weights that were packed for an earlier step are used", CONVOLUTION,
          "packed != nullptr && packed->current", "packed != nullptr", "weights are packed at once*", test="test_gpu_host"),
    Fault("convolutions: PyTorch's order of the weights is tried first", CONVOLUTION,
          "return {WeightOrder::kOutTapsIn, WeightOrder::kOutInTaps};",
          "return {WeightOrder::kOutInTaps, WeightOrder::kOutTapsIn};", "weights lie channels-last*", test="test_gpu_host"),
    Fault("transport event: the first two ranks' statistics are exchanged", EVENT,
          "    slots_.assign(posts.slots.begin(), posts.slots.end());\n",
          "    slots_.assign(posts.slots.begin(), posts.slots.end());\n"
          "    if (slots_.size() > 1) std::swap(slots_[0].data, slots_[1].data);\n",
          "event: every stream reads*", test="test_gpu_host"),
    Fault("transport event: nobody waits for a peer's event", EVENT,
          "      ticket.written.make_wait(stream());\n", "",
          "event: every stream reads*", test="test_gpu_host"),
    Fault("transport event: a rank's place in its process group is taken for its rank", EVENT,
          "static_cast<std::size_t>(group.place)", "static_cast<std::size_t>(group.ranks[group.place])",
          "event: every stream reads*", test="test_gpu_host"),
    Fault("transport event: no event is recorded behind a rank's statistics", EVENT,
          "    ticket.written.record(stream());\n", "", "event: every stream reads*", test="test_gpu_host"),
    Fault("transport host: a rank's statistics lie in one block, which its peers still read",
          "kernels/transport/gpu_host_transport.cpp",
          "    partials.turn = 1 - partials.turn;\n", "", "host: every stream reads*", test="test_gpu_host"),
    Fault("a replayed step: the other ranks do not wait for its end", "kernels/transport/step_graph.cpp",
          "done_->make_wait(stream);", "static_cast<void>(stream);",
          "a graph over several GPUs*", test="test_gpu_host"),
    Fault("steps begun ahead: a loss that is not finite is forgotten", "kernels/operations/loss.cu",
          "sums[i] = reset_sum(sums[i]);", "sums[i] = 0;",
          "no step after one with a bad loss*", test="test_gpu_host"),
    Fault("a readback: the host does not wait for the copy", "kernels/device/pinned_readback.cpp",
          "  at(slot).copied.synchronize();\n", "",
          "steps that are begun ahead have the bits*", test="test_gpu_host"),
    Fault("the gradients' check: the last element behind the packs is left out", "kernels/operations/loss_scale.cu",
          "+ first_item(); i < check.elements;", "+ first_item(); i < check.elements - 1;",
          "one gradient or a loss that is not finite*"),
    Fault("the loss scale: the last rank's gradients do not count", "kernels/operations/loss_scale.cu",
          "rank < guards.count;", "rank < guards.count - 1;", "the loss scale follows*"),
]
