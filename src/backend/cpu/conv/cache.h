#pragma once
// The convolutions that a backend has made.

#include <memory>
#include <vector>

#include "backend/cpu/conv/convolution.h"
#include "backend/cpu/conv/engines.h"

namespace lockstep {

/// The convolutions of one backend: a few dozen at most, so that a linear search is enough.
class ConvCache {
 public:
  /// `bf16`: as choose_conv_engine() takes it.
  explicit ConvCache(bool bf16) : bf16_(bf16) {}

  /// The chosen implementation, prepared for the pass; created at the first call.
  /// REQUIRES: the batch is not empty.
  Convolution& get(const ConvGeometry& geometry, const Shape& input, ConvPass pass, int threads);

 private:
  struct Entry {
    ConvGeometry geometry;
    Shape input;  // the largest that it serves
    const ConvEngine* engine;
    std::unique_ptr<Convolution> convolution;
  };
  /// Which entry serves a pass at one input shape.
  struct Use {
    ConvGeometry geometry;
    Shape input;
    ConvPass pass;
    Convolution* convolution;
  };
  Convolution& find_or_make(const ConvGeometry& geometry, const Shape& input,
                            const ConvEngine& engine, int threads);

  const bool bf16_;
  std::vector<Entry> entries_;
  std::vector<Use> uses_;
};

}  // namespace lockstep
