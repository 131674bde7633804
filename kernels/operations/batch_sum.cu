// One thread takes one element of all samples: neighbouring threads read neighbouring elements.

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/slot_sums.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

/// The elements of a sample, and where those of the others are.
struct SampleElements {
  std::int64_t samples, rows;  // `rows` of each
  std::int32_t elements;       // of each
  PackRows channels;

  SampleElements(const char* operation, const Shape& shape)
      : samples(shape.batch()),
        rows(shape.rows_per_sample()),
        elements(static_cast<std::int32_t>(rows * shape.channels())),
        channels(shape.channels()) {
    LOCKSTEP_CHECK(rows * shape.channels() <= kMaxItems, operation,
                   ": expected samples of at most ", kMaxItems, " elements, got ",
                   to_string(shape));
  }
};

template <typename T>
struct SumSamples {
  SampleElements all;
  Rows<const T> x;
  float* slot;  // [2, elements]

  __device__ void operator()(std::int32_t i) const {
    const auto [row, channel] = all.channels.place(i);
    double sum = 0;
    for (std::int64_t n = 0; n < all.samples; ++n) {
      sum += static_cast<double>(to_float(x.row(n * all.rows + row)[channel]));
    }
    const SplitSum split(sum);
    slot[i] = split.nearest;
    slot[all.elements + i] = split.rest;
  }
};

template <typename T>
struct SumSlots {
  SampleElements all;
  Rows<T> y;
  bool accumulate;
  SlotSums slots;

  __device__ void operator()(std::int32_t i) const {
    const auto [row, channel] = all.channels.place(i);
    const auto sum = static_cast<float>(slots.sum(i, all.elements));
    for (std::int64_t n = 0; n < all.samples; ++n) {
      T* target = y.row(n * all.rows + row) + channel;
      *target = from_float<T>(accumulate ? to_float(*target) + sum : sum);
    }
  }
};

struct SumImages {
  std::int64_t images, elements;
  const float* x;  // [images, elements]
  float* sum;

  __device__ void operator()(std::int32_t i) const {
    sum[i] += sum_in_image_tree(x + i, images, elements);
  }
};

__global__ void reset_kernel(double* sums, int count) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) sums[i] = reset_sum(sums[i]);
}

}  // namespace

void GpuSums::sum_over_batch(const Tensor& x, float* slot) {
  check_sum_over_batch(x, slot);
  const Context& context = context_.entered();
  const SampleElements all("sum_over_batch", x.shape);
  with_element_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    for_each(context, all.elements, SumSamples<T>{all, Rows<const T>(x), slot});
  });
}

void GpuSums::broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) {
  check_broadcast_sum(slots, y);
  check_parts(context_, "broadcast_sum", are_whole(slots));
  const Context& context = context_.entered();
  if (y.shape.elements() == 0) return;
  const SlotSums sums("broadcast_sum", slots);
  const SampleElements all("broadcast_sum", y.shape);
  with_element_type(y.dtype, [&](auto element) {
    using T = decltype(element);
    for_each(context, all.elements, SumSlots<T>{all, Rows<T>(y), accumulate, sums});
  });
}

void GpuSums::sum_over_images(const Tensor& x, float* sum) {
  check_sum_over_images(x, sum);
  const Context& context = context_.entered();
  const std::int64_t images = x.shape.batch();
  if (images == 0) return;
  const std::int64_t elements = x.shape.elements() / images;
  LOCKSTEP_CHECK(elements <= kMaxItems, "sum_over_images: expected at most ", kMaxItems,
                 " elements of an image, got ", elements);
  for_each(context, static_cast<std::int32_t>(elements),
           SumImages{images, elements, x.floats(), sum});
}

void GpuSums::reset_sums(double* sums, int count) {
  check_reset_sums(sums, count);
  const Context& context = context_.entered();
  launch_loop(context, count, reset_kernel, sums, count);
}

}  // namespace lockstep::gpu
