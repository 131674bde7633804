#pragma once
// What a step hands to the replicas, and what they hand back.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/data/batch.h"
#include "lockstep/parallel/options.h"

namespace lockstep {

/// What changes from step to step beside the batch. Operations read it from device memory, so that
/// a recorded step can be replayed.
struct StepScalars {
  std::array<double, kMaxLosses> normalizers{};  // of the whole global batch (loss_normalizer)
  std::uint64_t dropout_seed = 0;
  std::int64_t begun = 0;  // steps, this one too
  float lr = 0;
};

/// What a step adds up in device memory; one copy brings all of it.
struct StepSums {
  std::array<double, kMaxLosses> losses{};  // of the rank's own shard
  double squared_norm = 0;  // of the gradient's elements that the rank updates; 0 in fixed order
  double guard = 0;         // with a loss scale (GradientCheck)
  LossScaleState scale;     // stays from step to step
};

/// A replica's shard of one micro-batch, on the host.
struct BatchPart {
  const Batch* batch = nullptr;
  std::int64_t begin = 0, count = 0;  // samples
  std::int64_t sample_offset = 0;     // of the first one in the global batch
};

/// How the ranks come to a step's work.
enum class StepMode : std::uint8_t {
  kIssue,   // operation by operation
  kRecord,  // operation by operation into a recording, which is then replayed
  kReplay,  // from the recording
};

/// A step's input, the same for all ranks.
struct StepInput {
  std::int64_t step = 0;
  StepScalars scalars = {};
  StepMode mode = StepMode::kIssue;
  int slot = 0;                           // its number among the steps under way
  bool staged = false;                    // whether the batch has been staged
  std::int64_t batch = 0;                 // samples of the global batch
  std::span<const BatchPart> parts = {};  // [rank][micro-batch]
};

/// How many steps may be under way at the same time. Each has one of so many numbers, in turn.
constexpr int kStepSlots = 2;

/// What a batch comes to in an evaluation.
struct EvalOutcome {
  double loss = 0;         // sum over its valid positions, or over all elements
  std::int64_t terms = 0;  // of the sum
  std::int64_t top5 = 0;   // samples whose class is among the five likeliest
  TileMismatch mismatch = {};
};

/// One rank's share of a step's outcome.
struct StepOutcome {
  StepSums sums;
  // What is added up over all ranks, one after another: a rank's sums themselves, or what they
  // consist of (FixedOrderSums).
  std::vector<double> loss_terms;    // [loss][term]
  std::vector<double> square_terms;  // of the gradient's elements that the rank updates
  StepTimes times;
  std::size_t memory_bytes = 0, peak_memory_bytes = 0;  // of the backend

  auto fields() {
    return std::tie(sums, loss_terms, square_terms, times, memory_bytes, peak_memory_bytes);
  }
};

}  // namespace lockstep
