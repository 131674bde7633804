#include "backend/cpu/convolution.h"

#include <omp.h>

#include "backend/cpu/bf16/conv.h"
#include "backend/cpu/matmul/conv.h"
#include "backend/cpu/winograd/conv.h"
#include "lockstep/core/check.h"

namespace lockstep {

std::unique_ptr<Convolution> make_convolution(ConvEngine engine, const ConvGeometry& geometry,
                                              const Shape& input, int threads) {
  switch (engine) {
    case ConvEngine::kOneDnn:
      return make_dnnl_convolution(geometry, input, threads);
    case ConvEngine::kWinograd8:
      return make_winograd_convolution(geometry, input, threads, 8);
    case ConvEngine::kWinograd16:
      return make_winograd_convolution(geometry, input, threads, 16);
    case ConvEngine::kMatmul8:
      return make_matmul_convolution(geometry, input, threads, 8);
    case ConvEngine::kMatmul16:
      return make_matmul_convolution(geometry, input, threads, 16);
    case ConvEngine::kBf16:
    case ConvEngine::kBf16Avx512:
    case ConvEngine::kBf16Amx:
      return make_bf16_convolution(geometry, input, threads, *bf16_instructions(engine));
  }
  throw Error("no such implementation of a convolution");
}

bool serves_smaller_batches(ConvEngine engine) { return engine != ConvEngine::kOneDnn; }

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                            int threads) {
  // oneDNN asks OpenMP how many threads the calling thread may use, when it creates a primitive and
  // when it runs one; another backend of this thread may have asked for another number.
  omp_set_num_threads(threads);
  for (const Use& use : uses_) {
    if (use.pass == pass && use.input == input && use.geometry == geometry) {
      return *use.convolution;
    }
  }
  geometry.check();
  const ConvEngine engine = choose_conv_engine(geometry, input, pass, bf16_);
  Convolution& convolution = find_or_make(geometry, input, engine, threads);
  convolution.prepare(pass);
  uses_.push_back({geometry, input, pass, &convolution});
  return convolution;
}

Convolution& ConvCache::find_or_make(const ConvGeometry& geometry, const Shape& input,
                                     ConvEngine engine, int threads) {
  for (const Entry& entry : entries_) {
    const bool fits = input == entry.input ||
                      (serves_smaller_batches(engine) && input.batch() < entry.input.batch() &&
                       input == entry.input.with_batch(input.batch()));
    if (fits && entry.engine == engine && entry.geometry == geometry) return *entry.convolution;
  }
  entries_.push_back({geometry, input, engine, make_convolution(engine, geometry, input, threads)});
  return *entries_.back().convolution;
}

}  // namespace lockstep
