#pragma once
// The gradient of a convolution's weights, summed slice by slice: for a slice of the output's and
// one of the input's channels, the sums of a group of images and their tree (core/image_tree.h)
// stay in the caches of one thread, and memory sees the weights once. How much of a batch is a task
// of its own depends on the number of threads, no bit does.

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/simd.h"
#include "core/image_tree.h"
#include "lockstep/backend/convolutions.h"

namespace lockstep::matmul {

using namespace simd;

/// to [channels, taps] += values [taps, stride], as weights lie in PyTorch's order.
inline void add_in_weight_order(const float* values, std::int64_t stride, std::int64_t taps,
                                std::int64_t channels, float* to) {
  if (taps == 1) return add_values(values, channels, to);
  constexpr std::int64_t kBlock = 8;
  for (std::int64_t c = 0; c < channels; c += kBlock, to += kBlock * taps) {
    const std::int64_t count = std::min(kBlock, channels - c);
    std::int64_t tap = 0;
    for (; tap + kBlock <= taps; tap += kBlock) {
      Vec8 rows[kBlock];
      for (std::int64_t k = 0; k < kBlock; ++k) {
        rows[k] = load<kBlock>(values + (tap + k) * stride + c);
      }
      transpose(rows);
      for (std::int64_t i = 0; i < count; ++i) {
        float* row = to + i * taps + tap;
        store<kBlock>(row, load<kBlock>(row) + rows[i]);
      }
    }
    for (; tap < taps; ++tap) {
      for (std::int64_t i = 0; i < count; ++i) to[i * taps + tap] += values[tap * stride + c + i];
    }
  }
}

/// A part of one image's pixels, and a slice of the channels of both sides.
struct SumTask {
  std::int64_t image, part;
  Slice out, in;
};

class WeightGradient {
 public:
  /// The sums of an image are cut into `parts`, by its shape only, which are added in order.
  WeightGradient(const ConvGeometry& geometry, const Slices& out, const Slices& in,
                 std::int64_t parts, std::int64_t images, int threads)
      : taps_(geometry.kernel_h * geometry.kernel_w),
        in_channels_(geometry.in_channels),
        out_(out),
        in_(in),
        parts_(parts),
        images_(images),
        threads_(threads) {
    // Images of a task: as many as leave each thread a few tasks; one part where even single images
    // are too few.
    group_ = 1;
    while (group_ < images && pairs() * ((images + 2 * group_ - 1) / (2 * group_)) >= enough()) {
      group_ *= 2;
    }
    by_part_ = parts > 1 && pairs() * images < enough();
  }

  std::int64_t parts() const { return parts_; }
  /// How many floats a slice has: [out.padded, taps, in.padded].
  std::int64_t slice_floats() const { return out_.size() * taps_ * in_.size(); }
  /// `sum_floats`: what a thread needs to compute a task.
  std::int64_t scratch_floats(std::int64_t sum_floats) const {
    const std::int64_t waiting = units(images_) > 1 ? pairs() * units(images_) * slice_floats() : 0;
    return waiting + threads_ * thread_floats(sum_floats);
  }

  /// grad_weight += the gradient. `sum`(task, add, to, memory) writes or adds a task's values.
  template <class Sum>
  void add(std::int64_t images, const Sum& sum, std::int64_t sum_floats, float* grad_weight,
           float* scratch) const {
    const std::int64_t count = units(images);
    float* waiting = scratch;  // of each pair of slices, the values of each unit
    float* threads = scratch + (count > 1 ? pairs() * count * slice_floats() : 0);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
      float* memory = threads + omp_get_thread_num() * thread_floats(sum_floats);
#pragma omp for schedule(dynamic)
      for (std::int64_t task = 0; task < pairs() * count; ++task) {
        const std::int64_t pair = task / count;
        float* values = count > 1 ? waiting + task * slice_floats() : memory;
        compute_unit(pair, task % count, images, sum, values, memory + slice_floats());
        if (count == 1) write(pair, values, grad_weight);
      }
      if (count > 1) {
#pragma omp for schedule(dynamic)
        for (std::int64_t pair = 0; pair < pairs(); ++pair) {
          float* values = waiting + pair * count * slice_floats();
          join_units(pair, images, values);
          write(pair, values, grad_weight);
        }
      }
    }
  }

 private:
  std::int64_t enough() const { return 4 * static_cast<std::int64_t>(threads_); }
  std::int64_t pairs() const { return out_.count() * in_.count(); }
  Slice out(std::int64_t pair) const { return out_[pair % out_.count()]; }
  Slice in(std::int64_t pair) const { return in_[pair / out_.count()]; }
  std::int64_t values(std::int64_t pair) const { return out(pair).count * taps_ * in(pair).padded; }
  /// Tasks of each pair of slices.
  std::int64_t units(std::int64_t images) const {
    return by_part_ ? images * parts_ : (images + group_ - 1) / group_;
  }
  /// A result, the nodes of a tree that wait, an image of several parts, and what a task needs.
  std::int64_t thread_floats(std::int64_t sum_floats) const {
    return (1 + image_tree_nodes(group_) + 1) * slice_floats() + sum_floats;
  }

  template <class Sum>
  void compute_unit(std::int64_t pair, std::int64_t unit, std::int64_t images, const Sum& sum,
                    float* result, float* memory) const {
    const Slice outs = out(pair), ins = in(pair);
    float* image_values = memory + image_tree_nodes(group_) * slice_floats();
    float* sum_memory = image_values + slice_floats();
    if (by_part_) {
      sum({unit / parts_, unit % parts_, outs, ins}, false, result, sum_memory);
      return;
    }
    const auto node = [&](std::int64_t index) {
      return index == 0 ? result : memory + (index - 1) * slice_floats();
    };
    const auto join = [&](std::int64_t index) {
      add_values(node(index + 1), values(pair), node(index));
    };
    const std::int64_t first = unit * group_;
    const std::int64_t count = std::min(group_, images - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto take = [&](std::int64_t index, bool begins) {
        float* to = begins || parts_ == 1 ? node(index) : image_values;
        for (std::int64_t part = 0; part < parts_; ++part) {
          const bool add = part > 0 || (parts_ == 1 && !begins);
          sum({first + i, part, outs, ins}, add, to, sum_memory);
        }
        if (to != node(index)) add_values(to, values(pair), node(index));
      };
      place_image(i, take, join);
    }
    join_nodes(count, join);
  }

  /// The units' values become one, where the first lies.
  void join_units(std::int64_t pair, std::int64_t images, float* first) const {
    const std::int64_t per_leaf = by_part_ ? parts_ : 1;
    const std::int64_t leaves = units(images) / per_leaf;
    const auto unit = [&](std::int64_t index) { return first + index * slice_floats(); };
    for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
      for (std::int64_t part = 1; part < per_leaf; ++part) {
        add_values(unit(leaf * per_leaf + part), values(pair), unit(leaf * per_leaf));
      }
    }
    for (std::int64_t half = 1; half < leaves; half *= 2) {
      for (std::int64_t leaf = 0; leaf + half < leaves; leaf += 2 * half) {
        add_values(unit((leaf + half) * per_leaf), values(pair), unit(leaf * per_leaf));
      }
    }
  }

  void write(std::int64_t pair, const float* from, float* grad_weight) const {
    const Slice outs = out(pair), ins = in(pair);
    for (std::int64_t o = 0; o < outs.count; ++o) {
      add_in_weight_order(from + o * taps_ * ins.padded, ins.padded, taps_, ins.count,
                          grad_weight + ((outs.begin + o) * in_channels_ + ins.begin) * taps_);
    }
  }

  const std::int64_t taps_, in_channels_;
  const Slices out_, in_;
  const std::int64_t parts_, images_;
  const int threads_;
  std::int64_t group_;
  bool by_part_;
};

}  // namespace lockstep::matmul
