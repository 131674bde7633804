#include "step/fleet_state.h"

namespace lockstep {
namespace {

/// What of an outcome is a value; its spans follow.
struct OutcomeValues {
  StepSums sums;
  StepTimes times;
  std::size_t memory_bytes = 0, peak_memory_bytes = 0;
  std::size_t image_losses = 0, block_squares = 0;
};

void write_outcome(const StepOutcome& outcome, ByteWriter& writer) {
  writer.add(OutcomeValues{outcome.sums, outcome.times, outcome.memory_bytes,
                           outcome.peak_memory_bytes, outcome.image_losses.size(),
                           outcome.block_squares.size()});
  writer.add_all(outcome.image_losses);
  writer.add_all(outcome.block_squares);
}

StepOutcome read_outcome(ByteReader& reader, std::vector<double>& memory) {
  const auto values = reader.get<OutcomeValues>();
  memory.resize(values.image_losses + values.block_squares);
  reader.get_all(memory);
  const std::span<const double> all = memory;
  return {values.sums,
          all.first(values.image_losses),
          all.subspan(values.image_losses),
          values.times,
          values.memory_bytes,
          values.peak_memory_bytes};
}

}  // namespace

SharedOutcomes::SharedOutcomes(SyncGroup& group)
    : group_(group), numbers_(static_cast<std::size_t>(group.size())) {}

void SharedOutcomes::share(std::span<StepOutcome> outcomes) {
  const Roster& roster = group_.roster();
  own_.clear();
  for (int i = 0; i < roster.own_ranks(); ++i) {
    write_outcome(outcomes[static_cast<std::size_t>(roster.first_rank() + i)], own_);
  }
  group_.all_gather(own_.bytes(), all_);
  for (int process = 0; process < roster.processes(); ++process) {
    if (process == roster.process) continue;
    ByteReader reader(all_[static_cast<std::size_t>(process)]);
    const auto end = static_cast<std::size_t>(roster.first[static_cast<std::size_t>(process) + 1]);
    for (auto rank = static_cast<std::size_t>(roster.first[static_cast<std::size_t>(process)]);
         rank < end; ++rank) {
      outcomes[rank] = read_outcome(reader, numbers_[rank]);
    }
  }
}

void share_evaluation(SyncGroup& group, std::span<EvalOutcome> batches,
                      std::span<std::int64_t> confusion) {
  const Roster& roster = group.roster();
  ByteWriter writer;
  writer.add_all(std::span<const EvalOutcome>(batches));
  writer.add_all(std::span<const std::int64_t>(confusion));
  std::vector<Bytes> all;
  group.all_gather(writer.bytes(), all);
  for (int process = 0; process < roster.processes(); ++process) {
    if (process == roster.process) continue;
    ByteReader reader(all[static_cast<std::size_t>(process)]);
    std::vector<EvalOutcome> theirs(batches.size());
    std::vector<std::int64_t> counts(confusion.size());
    reader.get_all(theirs);
    reader.get_all(counts);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const int rank = static_cast<int>(i % static_cast<std::size_t>(roster.ranks()));
      if (roster.process_of(rank) == process) batches[i] = theirs[i];
    }
    for (std::size_t i = 0; i < confusion.size(); ++i) confusion[i] += counts[i];
  }
}

void share_state(SyncGroup& group, ReplicaState& state) {
  ByteWriter writer;
  if (group.roster().process == 0) {
    writer.add_all(state.values);
    writer.add_all(state.statistics);
    writer.add_all(state.tracked);
  }
  std::vector<Bytes> all;
  group.all_gather(writer.bytes(), all);
  ByteReader reader(all.front());
  reader.get_all(state.values);
  reader.get_all(state.statistics);
  reader.get_all(state.tracked);
}

void share_optimizer_state(SyncGroup& group, OptimizerState& state) {
  const Roster& roster = group.roster();
  std::vector<Bytes> all;
  for (auto& slot : state.slots) {
    std::vector<float>& values = slot.second;
    const auto piece = [&](std::size_t process) {
      const auto elements = static_cast<std::int64_t>(values.size());
      const auto begin = owned_begin(elements, roster.first[process], roster.ranks());
      const auto end = owned_begin(elements, roster.first[process + 1], roster.ranks());
      return std::span<float>(values).subspan(static_cast<std::size_t>(begin),
                                              static_cast<std::size_t>(end - begin));
    };
    ByteWriter writer;
    writer.add_all(std::span<const float>(piece(static_cast<std::size_t>(roster.process))));
    group.all_gather(writer.bytes(), all);
    for (std::size_t process = 0; process < all.size(); ++process) {
      ByteReader(all[process]).get_all(piece(process));
    }
  }
}

}  // namespace lockstep
