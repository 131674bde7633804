#pragma once
// What sums image by image are made of (Backend::sums_by_image): the kernels that know nothing of
// it, once for every image, and the order in which their results are put together. What waits for
// others lies in the context's memory for sums.

#include <cstdint>

#include "backend/operands.h"
#include "core/image_tree.h"
#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Sums of equally many floats that wait for others, numbered from 0. Their memory is valid until
/// the context's memory for sums is asked for again.
class WaitingSums {
 public:
  /// At most `most` at a time.
  WaitingSums(const Context& context, std::int64_t most, std::int64_t elements);

  float* at(int sum) const { return memory_ + sum * stride_; }
  void clear(int sum) const;
  /// Sum `sum` = values [elements], or += them.
  void take(int sum, const float* values, bool first) const;
  /// Sum `sum` += the one behind it, which is of no use any more.
  void join(int sum) const { take(sum, at(sum + 1), false); }

 private:
  const Context& context_;
  std::int64_t elements_, stride_;
  float* memory_;
};

/// to [elements] += from [elements].
void accumulate(const Context& context, const float* from, std::int64_t elements, float* to);

/// The sum over the images in the tree of core/image_tree.h, [elements] in the context's memory for
/// sums: add(image, to) adds what an image comes to. REQUIRES: there are images.
template <typename Add>
float* sum_in_tree(const Context& context, std::int64_t images, std::int64_t elements,
                   const Add& add) {
  const WaitingSums sums(context, image_tree_nodes(images), elements);
  for (std::int64_t image = 0; image < images; ++image) {
    place_image(
        image,
        [&](int node, bool first) {
          if (first) sums.clear(node);
          add(image, sums.at(node));
        },
        [&](int node) { sums.join(node); });
  }
  join_nodes(images, [&](int node) { sums.join(node); });
  return sums.at(0);
}

/// total [elements] += the sum over the images in the tree. REQUIRES: there are images.
template <typename Add>
void add_in_tree(const Context& context, std::int64_t images, std::int64_t elements, float* total,
                 const Add& add) {
  if (images == 1) return add(std::int64_t{0}, total);
  accumulate(context, sum_in_tree(context, images, elements, add), elements, total);
}

/// Zeros for the losses of images, in the context's memory for sums.
double* cleared_losses(const Context& context, std::int64_t images);
/// image_losses [images] += losses, unless null; *total += the sum of the losses in their order.
void add_losses(const Context& context, const double* losses, std::int64_t images,
                double* image_losses, double* total);

/// loss(image, to) adds an image's loss to *to. Each is added to its own of image_losses, unless
/// that is null, and all of them, in their order, to *total.
template <typename Loss>
void add_losses_by_image(const Context& context, std::int64_t images, double* image_losses,
                         double* total, const Loss& loss) {
  if (images == 0) return;
  double* losses = cleared_losses(context, images);
  for (std::int64_t image = 0; image < images; ++image) loss(image, losses + image);
  add_losses(context, losses, images, image_losses, total);
}

/// Returns the weights of the samples from `first` on; null of null.
inline const float* weights_from(const float* sample_weights, std::int64_t first) {
  return sample_weights == nullptr ? nullptr : sample_weights + first;
}

/// `count` of `parts` equal parts of a tensor's rows, from part `first` on; null of a null one.
inline Tensor parts_of(const Tensor& tensor, std::int64_t parts, std::int64_t first,
                       std::int64_t count) {
  if (!tensor || parts == 1) return tensor;
  Tensor all = tensor;
  all.shape = Shape{parts, tensor.shape.rows() / parts, tensor.shape.channels()};
  return all.sample_range(first, count);
}

}  // namespace lockstep::gpu
