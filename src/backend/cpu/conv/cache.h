#pragma once
// The convolutions that a backend has made.

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <tuple>

#include "backend/cpu/conv/convolution.h"
#include "backend/cpu/conv/engines.h"

namespace lockstep {

/// The convolutions of one backend: a few dozen of a training, and as many for every size of the
/// images that it evaluates, of which the last ones are kept.
class ConvCache {
 public:
  /// `exact`: of convolutions that round no more than direct ones alone.
  explicit ConvCache(bool exact) : exact_(exact) {}

  /// The choice for tensors of this type: the clock's where a training wants it or has wanted it.
  /// REQUIRES: the batch is not empty.
  const ConvEngine& engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                           DType dtype, bool training = false);

  /// What it makes, prepared for the pass; created at the first call. Good until the next call.
  Convolution& get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                   const ConvEngine& engine, int threads, bool training = false);

  /// How many it has made and not dropped.
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    ConvGeometry geometry;
    Shape input;  // the largest that it serves
    const ConvEngine* engine;
    std::unique_ptr<Convolution> convolution;
    bool training;  // whether one uses it
  };
  struct Chosen {
    const ConvEngine* engine;
    bool training;
  };
  /// The numbers of a geometry and of an input's shape.
  using Problem = std::array<std::int64_t, 16>;
  static Problem problem_of(const ConvGeometry& geometry, const Shape& input);
  Entry& find_or_make(const ConvGeometry& geometry, const Shape& input, const ConvEngine& engine,
                      int threads);
  void drop_evaluated();

  const bool exact_;
  std::list<Entry> entries_;
  std::map<std::tuple<Problem, ConvPass, DType>, Chosen> choices_;  // by one image
  std::map<std::tuple<Problem, ConvPass, const ConvEngine*>, Entry*> uses_;
};

}  // namespace lockstep
