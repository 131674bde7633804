#include "lockstep/core/shape.h"

#include <limits>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// So that the bytes of its elements, and of a few such tensors, are a number, too.
constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 64;

const Shape& checked(const Shape& shape) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool too_many = __builtin_mul_overflow(elements, shape[axis], &elements);
    LOCKSTEP_CHECK(!too_many && elements <= kMostElements, "a tensor of shape ", to_string(shape),
                   " has more elements than can be counted; give smaller extents");
  }
  return shape;
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  LOCKSTEP_CHECK(extents.size() <= kMaxRank, "a shape has at most ", kMaxRank, " extents, got ",
                 extents.size());
  for (const std::int64_t extent : extents) {
    LOCKSTEP_CHECK(extent >= 0, "extents are not negative, got ", extent);
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }
  checked(*this);
}

std::int64_t Shape::rows() const {
  if (rank_ == 0) return 0;
  std::int64_t product = 1;
  for (int axis = 0; axis + 1 < rank_; ++axis) product *= (*this)[axis];
  return product;
}

std::int64_t Shape::rows_per_sample() const {
  std::int64_t product = 1;
  for (int axis = 1; axis + 1 < rank_; ++axis) product *= (*this)[axis];
  return product;
}

Shape Shape::with_batch(std::int64_t batch) const {
  LOCKSTEP_CHECK(rank_ > 0 && batch >= 0,
                 "expected a batch of 0 or more for a shape with extents, ", "got ", batch, " for ",
                 to_string(*this));
  Shape changed = *this;
  changed.extents_[0] = batch;
  return checked(changed);
}

Shape Shape::with_channels(std::int64_t channels) const {
  LOCKSTEP_CHECK(rank_ > 0 && channels >= 0, "expected 0 or more channels for a shape with ",
                 "extents, got ", channels, " for ", to_string(*this));
  Shape changed = *this;
  changed.extents_[static_cast<std::size_t>(rank_ - 1)] = channels;
  return checked(changed);
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace lockstep
