#include "data/for_each_sample.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

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
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // the first; guarded by mutex
  const auto work = [&] {
    Sample sample;
    try {
      for (std::size_t i = next++; i < indices.size(); i = next++)
        visit_one(dataset, indices[i], sample, visit);
    } catch (...) {
      next = indices.size();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

void for_each_sample(const Dataset& dataset, int workers, const SampleVisitor& visit) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(dataset.size()));
  std::iota(all.begin(), all.end(), 0);
  for_each_sample(dataset, all, workers, visit);
}

}  // namespace lockstep
