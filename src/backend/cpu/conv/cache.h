#pragma once
// The convolutions that a backend has made.

#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/cpu/conv/convolution.h"
#include "backend/cpu/conv/engines.h"

namespace lockstep {

/// The convolutions of one backend: a few dozen of a training, and as many more for every size of
/// the images that it evaluates.
class ConvCache {
 public:
  /// `exact`: of convolutions that round no more than direct ones alone.
  explicit ConvCache(bool exact) : exact_(exact) {}

  /// The choice for tensors of this type. REQUIRES: the batch is not empty.
  const ConvEngine& engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                           DType dtype);

  /// What it makes, prepared for the pass; created at the first call.
  Convolution& get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                   const ConvEngine& engine, int threads);

 private:
  struct Entry {
    ConvGeometry geometry;
    Shape input;  // the largest that it serves
    const ConvEngine* engine;
    std::unique_ptr<Convolution> convolution;
  };
  /// The numbers of a geometry and of an input's shape.
  using Problem = std::array<std::int64_t, 16>;
  static Problem problem_of(const ConvGeometry& geometry, const Shape& input);
  Convolution& find_or_make(const ConvGeometry& geometry, const Shape& input,
                            const ConvEngine& engine, int threads);

  const bool exact_;
  std::vector<Entry> entries_;
  std::map<std::tuple<Problem, ConvPass, DType>, const ConvEngine*> choices_;  // by one image
  std::map<std::tuple<Problem, ConvPass, const ConvEngine*>, Convolution*> uses_;
};

}  // namespace lockstep
