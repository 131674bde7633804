#include "backend/cpu/conv/cache.h"

#include <omp.h>

#include <algorithm>

#include "backend/cpu/conv/choice.h"

namespace lockstep {
namespace {

// Of evaluations; images may come in thousands of sizes.
constexpr std::ptrdiff_t kMostEvaluated = 1000;

}  // namespace

ConvCache::Problem ConvCache::problem_of(const ConvGeometry& g, const Shape& input) {
  return {g.in_channels, g.out_channels, g.kernel_h,    g.kernel_w,      g.stride_h, g.stride_w,
          g.padding_h,   g.padding_w,    g.dilation_h,  g.dilation_w,    g.groups,   input.rank(),
          input.batch(), input.height(), input.width(), input.channels()};
}

const ConvEngine& ConvCache::engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                                    DType dtype, bool training) {
  const Shape image = input.with_batch(1);
  const std::tuple key{problem_of(geometry, image), pass, dtype};
  const auto known = choices_.find(key);
  if (known != choices_.end() && known->second.training >= training) return *known->second.engine;
  geometry.check();
  check_computes(dtype);
  const ConvEngine& engine = choose_conv_engine(geometry, image, pass, dtype, exact_, training);
  choices_.insert_or_assign(key, Chosen{&engine, training});
  return engine;
}

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                            const ConvEngine& engine, int threads, bool training) {
  // oneDNN asks OpenMP how many threads the calling thread may use, when it creates a primitive and
  // when it runs one; another backend of this thread may have asked for another number.
  omp_set_num_threads(threads);
  const std::tuple key{problem_of(geometry, input), pass, &engine};
  auto use = uses_.find(key);
  if (use == uses_.end()) {
    if (!training) drop_evaluated();
    Entry& entry = find_or_make(geometry, input, engine, threads);
    entry.convolution->prepare(pass);
    use = uses_.emplace(key, &entry).first;
  }
  Entry& entry = *use->second;
  entry.training = entry.training || training;
  return *entry.convolution;
}

ConvCache::Entry& ConvCache::find_or_make(const ConvGeometry& geometry, const Shape& input,
                                          const ConvEngine& engine, int threads) {
  for (Entry& entry : entries_) {
    const bool fits =
        input == entry.input || (!engine.one_batch && input.batch() < entry.input.batch() &&
                                 input == entry.input.with_batch(input.batch()));
    if (fits && entry.engine == &engine && entry.geometry == geometry) return entry;
  }
  return entries_.emplace_back(
      Entry{geometry, input, &engine, engine.make(geometry, input, threads), false});
}

/// All that no training uses, where there are too many.
void ConvCache::drop_evaluated() {
  const auto evaluated = std::ranges::count(entries_, false, &Entry::training);
  if (evaluated < kMostEvaluated) return;
  std::erase_if(uses_, [](const auto& use) { return !use.second->training; });
  std::erase_if(choices_, [](const auto& choice) { return !choice.second.training; });
  entries_.remove_if([](const Entry& entry) { return !entry.training; });
}

}  // namespace lockstep
