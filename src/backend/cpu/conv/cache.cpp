#include "backend/cpu/conv/cache.h"

#include <omp.h>

#include "backend/cpu/conv/choice.h"

namespace lockstep {

const ConvEngine& ConvCache::engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                                    DType dtype) {
  const Shape image = input.with_batch(1);
  for (const Choice& choice : choices_) {
    if (choice.pass == pass && choice.dtype == dtype && choice.image == image &&
        choice.geometry == geometry) {
      return *choice.engine;
    }
  }
  geometry.check();
  const ConvEngine& engine = choose_conv_engine(geometry, image, pass, dtype);
  choices_.push_back({geometry, image, pass, dtype, &engine});
  return engine;
}

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                            const ConvEngine& engine, int threads) {
  // oneDNN asks OpenMP how many threads the calling thread may use, when it creates a primitive and
  // when it runs one; another backend of this thread may have asked for another number.
  omp_set_num_threads(threads);
  for (const Use& use : uses_) {
    if (use.pass == pass && use.engine == &engine && use.input == input &&
        use.geometry == geometry) {
      return *use.convolution;
    }
  }
  Convolution& convolution = find_or_make(geometry, input, engine, threads);
  convolution.prepare(pass);
  uses_.push_back({geometry, input, pass, &engine, &convolution});
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
