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
  /// The choice for a pass over images of one shape.
  struct Choice {
    ConvGeometry geometry;
    Shape image;
    ConvPass pass;
    DType dtype;
    const ConvEngine* engine;
  };
  /// Which entry serves a pass at one input shape.
  struct Use {
    ConvGeometry geometry;
    Shape input;
    ConvPass pass;
    const ConvEngine* engine;
    Convolution* convolution;
  };
  Convolution& find_or_make(const ConvGeometry& geometry, const Shape& input,
                            const ConvEngine& engine, int threads);

  std::vector<Choice> choices_;
  std::vector<Entry> entries_;
  std::vector<Use> uses_;
};

}  // namespace lockstep
