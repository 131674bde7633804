"""What the kernels' machine code must and must not have, per object of kernels/operations (without .cu.o).

A kernel is named by a pattern of its demangled name in which the namespaces are left out.
"""
import re
from dataclasses import dataclass

SIZES = {"float": 4, "lockstep::gpu::BFloat16": 2, "lockstep::gpu::Float16": 2, "BFloat16": 2, "Float16": 2}


@dataclass(frozen=True)
class Rule:
    object: str
    kernel: str  # pattern; its groups T, Y (element types) and W (elements of a pack) say what is moved
    loads: bool = True  # T x W is 16 bytes: 128-bit loads are there
    stores: bool = True  # Y (or T) x W is 16 bytes: 128-bit stores are there,
    only: bool = True  # and no narrower ones

    def wide(self, match):
        """(whether loads, whether stores) of the matched kernel must be of 128 bits."""
        groups = match.groupdict()
        size = SIZES[groups["T"]] * int(groups["W"]) if "W" in groups else 16
        target = SIZES[groups["Y"]] * int(groups["W"]) if "Y" in groups else size
        return self.loads and size == 16, self.stores and target == 16


T, Y, W = r"(?P<T>float|BFloat16|Float16)", r"(?P<Y>float|BFloat16|Float16)", r"(?P<W>\d+)"

RULES = [
    Rule("batch_norm_moments", rf"moments_kernel<{T}, true>", stores=False),
    Rule("batch_norm_forward", rf"normalize_kernel<{T}, true, .*>", only=False),  # and running statistics
    Rule("batch_norm_backward", rf"backward_reduce_kernel<{T}, true, .*>", stores=False),
    Rule("batch_norm_backward", rf"backward_apply_kernel<{T}, true, .*>"),
    Rule("bias", rf"AddBiasToPack<{T}, {W}>"),
    Rule("bias", rf"column_sums_kernel<{T}, true>", stores=False),
    Rule("pointwise", r"CopyUnit<uint4>"),
    Rule("pointwise", rf"MapPack<\w+, {T}, {Y}, {W}>"),
    Rule("pointwise", rf"dropout_kernel<{T}, {W}>"),
    Rule("max_pool", rf"max_forward_kernel<{T}, {W}, \w+>", only=False),  # and the winners' bytes
    Rule("max_pool", rf"max_backward_kernel<{T}, {W}, \w+>"),
    Rule("element_losses", rf"element_losses_kernel<{T}, {W}, SquaredError>", only=False),  # and the sums
    Rule("avg_pool", rf"average_forward_kernel<{T}, {W}, \w+>"),
    Rule("avg_pool", rf"average_backward_kernel<{T}, {W}, \w+>"),
    Rule("optimizer", r"optimizer_kernel<4, \w+>", only=False),  # and single elements at the ends of ranges
    Rule("upsample", rf"upsample_forward_kernel<{T}, {W}>"),
    Rule("upsample", rf"upsample_backward_kernel<{T}, {W}>"),
]

# Objects in which nothing divides 64-bit integers: their indices have 32 bits, or are divided by a Divisor.
WITHOUT_DIVISION = ["avg_pool", "batch_norm_backward", "batch_norm_forward", "batch_norm_moments", "bias", "element_losses",
                    "max_pool", "pointwise", "upsample"]

# The subroutine that ptxas calls for it.
DIVISION = re.compile(r"__cuda_sm20_(?:div|rem)_[su]64")

# --- registers and stack

# A kernel's threads, 256 in a block, leave room for another block on a multiprocessor.
MOST_REGISTERS = 128


@dataclass(frozen=True)
class Stack:
    object: str
    kernel: str
    bytes: int  # of a thread, at most
    architecture: str = ""  # there alone


# Kernels that may have a stack, with the reason; others have none. An entry that no kernel needs fails.
STACKS = [
    # Sums that wait for their other half, kMostWaiting of them.
    Stack("batch_sum", r"SumImages", 128),
    Stack("batch_norm_backward", r"AffineGradients", 128),
    Stack("group_norm", r"FinishGroups", 128),
    # ptxas spills two to four registers.
    Stack("batch_norm_forward", r"normalize_kernel<", 8, "sm_120"),
    Stack("batch_norm_backward", r"backward_apply_kernel<", 8, "sm_120"),
]

# Kernels whose registers are bounded for more than one block on a multiprocessor. What ptxas makes of such a bound depends
# on the GPU, so that these sources are compiled for others, too. Kernels without one may have all registers that there are.
BOUNDED = re.compile(r"__launch_bounds__\([^)]*,")
OTHER_GPUS = ["sm_75", "sm_89", "sm_120"]

# --- dependent launches (kernels/primitives/launch.h)

# (object, kernel) of all that launch_dependent() starts.
EARLY = [
    ("batch_norm_moments", r"moments_kernel<"),
    ("batch_norm_forward", r"normalize_kernel<"),
    ("batch_norm_backward", r"backward_reduce_kernel<"),
    ("batch_norm_backward", r"backward_apply_kernel<"),
]
