#pragma once
// Extents of a channels-last tensor: the first extent is the batch, the last one the channels, and
// what lies between is spatial: (N,C), (N,L,C), (N,H,W,C) or (N,D,H,W,C).

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace lockstep {

/// A value: copies are independent, and constant ones are safe from any thread.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  /// REQUIRES: at most kMaxRank extents, none negative (throws Error otherwise).
  Shape(std::initializer_list<std::int64_t> extents);

  /// How many extents there are; 0 for a shape that was not given any.
  int rank() const { return rank_; }
  /// The extent of an axis. REQUIRES: 0 <= axis < rank().
  std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis)]; }

  /// The first extent, in samples; 0 without extents.
  std::int64_t batch() const { return rank_ == 0 ? 0 : extents_[0]; }
  /// The last extent; 0 without extents.
  std::int64_t channels() const {
    return rank_ == 0 ? 0 : extents_[static_cast<std::size_t>(rank_ - 1)];
  }
  /// Height and width, in pixels, of an (N,H,W,C) shape. REQUIRES: rank() == 4.
  std::int64_t height() const { return extents_[1]; }
  std::int64_t width() const { return extents_[2]; }

  /// Product of all extents but the channels: how many values a channel has.
  std::int64_t rows() const;
  /// Rows of one sample: the product of the spatial extents (1 for (N,C)).
  std::int64_t rows_per_sample() const;
  /// Product of all extents.
  std::int64_t elements() const { return rows() * channels(); }

  /// The same shape with another first or last extent. REQUIRES: rank() > 0.
  Shape with_batch(std::int64_t batch) const;
  Shape with_channels(std::int64_t channels) const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

/// "[8, 176, 240, 16]".
std::string to_string(const Shape& shape);

}  // namespace lockstep
