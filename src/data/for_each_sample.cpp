#include "data/for_each_sample.h"

#include <numeric>
#include <vector>

#include "core/for_each_index.h"

namespace lockstep {
namespace {

void visit_one(const Dataset& dataset, std::int64_t index, Sample& sample,
               const SampleVisitor& visit) {
  try {
    dataset.load(index, sample);
  } catch (const DataError& error) {
    visit(index, nullptr, &error);
    return;
  }
  visit(index, &sample, nullptr);
}

}  // namespace

void for_each_sample(const Dataset& dataset, std::span<const std::int64_t> indices, int workers,
                     const SampleVisitor& visit) {
  std::vector<Sample> samples(static_cast<std::size_t>(workers + 1));  // [thread]
  for_each_index(static_cast<std::int64_t>(indices.size()), workers + 1,
                 [&](std::int64_t i, int thread) {
                   visit_one(dataset, indices[static_cast<std::size_t>(i)],
                             samples[static_cast<std::size_t>(thread)], visit);
                 });
}

void for_each_sample(const Dataset& dataset, int workers, const SampleVisitor& visit) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(dataset.size()));
  std::iota(all.begin(), all.end(), 0);
  for_each_sample(dataset, all, workers, visit);
}

}  // namespace lockstep
