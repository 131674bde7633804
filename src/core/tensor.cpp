#include "lockstep/core/tensor.h"

namespace lockstep {
namespace {

Tensor offset_view(const Tensor& tensor, std::int64_t elements, const Shape& shape) {
  Tensor view = tensor;
  view.shape = shape;
  view.data = static_cast<std::byte*>(tensor.data) +
              static_cast<std::size_t>(elements) * size_of(tensor.dtype);
  return view;
}

}  // namespace

Tensor Tensor::channel_range(std::int64_t begin, std::int64_t count) const {
  LOCKSTEP_CHECK(begin >= 0 && count >= 0 && count <= shape.channels() - begin, count,
                 " channels from ", begin, " on of a tensor of shape ", to_string(shape));
  return offset_view(*this, begin, shape.with_channels(count));
}

Tensor Tensor::sample_range(std::int64_t begin, std::int64_t count) const {
  LOCKSTEP_CHECK(begin >= 0 && count >= 0 && count <= shape.batch() - begin, count,
                 " samples from ", begin, " on of a tensor of shape ", to_string(shape));
  return offset_view(*this, begin * shape.rows_per_sample() * row_stride, shape.with_batch(count));
}

}  // namespace lockstep
