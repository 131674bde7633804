#include "backend/cpu/conv/cache.h"

#include <omp.h>

#include "backend/cpu/conv/choice.h"

namespace lockstep {

ConvCache::Problem ConvCache::problem_of(const ConvGeometry& g, const Shape& input) {
  return {g.in_channels, g.out_channels, g.kernel_h,    g.kernel_w,      g.stride_h, g.stride_w,
          g.padding_h,   g.padding_w,    g.dilation_h,  g.dilation_w,    g.groups,   input.rank(),
          input.batch(), input.height(), input.width(), input.channels()};
}

const ConvEngine& ConvCache::engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                                    DType dtype) {
  const Shape image = input.with_batch(1);
  const std::tuple key{problem_of(geometry, image), pass, dtype};
  if (const auto known = choices_.find(key); known != choices_.end()) return *known->second;
  geometry.check();
  check_computes(dtype);
  const ConvEngine& engine = choose_conv_engine(geometry, image, pass, dtype, exact_);
  choices_.emplace(key, &engine);
  return engine;
}

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                            const ConvEngine& engine, int threads) {
  // oneDNN asks OpenMP how many threads the calling thread may use, when it creates a primitive and
  // when it runs one; another backend of this thread may have asked for another number.
  omp_set_num_threads(threads);
  const std::tuple key{problem_of(geometry, input), pass, &engine};
  if (const auto known = uses_.find(key); known != uses_.end()) return *known->second;
  Convolution& convolution = find_or_make(geometry, input, engine, threads);
  convolution.prepare(pass);
  uses_.emplace(key, &convolution);
  return convolution;
}

Convolution& ConvCache::find_or_make(const ConvGeometry& geometry, const Shape& input,
                                     const ConvEngine& engine, int threads) {
  for (const Entry& entry : entries_) {
    const bool fits =
        input == entry.input || (!engine.one_batch && input.batch() < entry.input.batch() &&
                                 input == entry.input.with_batch(input.batch()));
    if (fits && entry.engine == &engine && entry.geometry == geometry) return *entry.convolution;
  }
  entries_.push_back({geometry, input, &engine, engine.make(geometry, input, threads)});
  return *entries_.back().convolution;
}

}  // namespace lockstep
