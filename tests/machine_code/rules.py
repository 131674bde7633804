"""What the kernels' machine code must and must not have, per object.

A kernel is named by a pattern of its demangled name in which the namespaces are left out.
"""
import re
from dataclasses import dataclass, field

SIZES = {"float": 4, "lockstep::gpu::BFloat16": 2, "lockstep::gpu::Float16": 2, "BFloat16": 2, "Float16": 2}


@dataclass(frozen=True)
class Rule:
    object: str  # of kernels/operations, without .cu.o
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
    Rule("mean_squared_error", rf"mean_squared_error_kernel<{T}, {W}>", only=False),  # and the sums
    Rule("avg_pool", rf"average_forward_kernel<{T}, {W}, \w+>"),
    Rule("avg_pool", rf"average_backward_kernel<{T}, {W}, \w+>"),
    Rule("optimizer", r"optimizer_kernel<4, \w+>", only=False),  # and single elements at the ends of ranges
    Rule("upsample", rf"upsample_forward_kernel<{T}, {W}>"),
    Rule("upsample", rf"upsample_backward_kernel<{T}, {W}>"),
]

# Objects in which nothing divides 64-bit integers: their indices have 32 bits, or are divided by a Divisor.
WITHOUT_DIVISION = ["avg_pool", "batch_norm_backward", "batch_norm_forward", "batch_norm_moments", "bias", "max_pool",
                    "mean_squared_error", "pointwise", "upsample"]

# The subroutine that ptxas calls for it.
DIVISION = re.compile(r"__cuda_sm20_(?:div|rem)_[su]64")
