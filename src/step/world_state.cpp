#include "step/world_state.h"

#include "lockstep/core/check.h"
#include "step/averaged_weights.h"
#include "step/parameter_ranges.h"

namespace lockstep {

const Batch& SharedLabelCounts::share(const Batch& batch) {
  if (!batch.own_places_only) return batch;
  LOCKSTEP_CHECK(!batch.class_pixels.empty(),
                 "a batch of own places only comes with its label counts");
  group_.all_gather(std::as_bytes(std::span(batch.class_pixels)), all_);
  counted_.samples = batch.samples;
  counted_.class_pixels.assign(batch.class_pixels.size(), 0);
  for (const Bytes& theirs : all_) {
    ByteReader reader(theirs);
    for (std::int64_t& count : counted_.class_pixels) count += reader.get<std::int64_t>();
  }
  return counted_;
}

void share_evaluation(SyncGroup& group, std::span<EvalOutcome> batches,
                      std::span<std::int64_t> confusion) {
  const RankLayout& layout = group.rank_layout();
  const auto write = [&](ByteWriter& writer) {
    writer.add_all(std::span<const EvalOutcome>(batches));
    writer.add_all(std::span<const std::int64_t>(confusion));
  };
  const auto read = [&](int process, ByteReader& reader) {
    std::vector<EvalOutcome> theirs(batches.size());
    std::vector<std::int64_t> counts(confusion.size());
    reader.get_all(theirs);
    reader.get_all(counts);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const int rank = static_cast<int>(i % static_cast<std::size_t>(layout.ranks()));
      if (layout.process_of(rank) == process) batches[i] = theirs[i];
    }
    for (std::size_t i = 0; i < confusion.size(); ++i) confusion[i] += counts[i];
  };
  PeerExchange()(group, write, read);
}

void share_state(SyncGroup& group, ReplicaState& state) {
  const bool first = group.rank_layout().process == 0;
  const auto write = [&](ByteWriter& writer) {
    if (!first) return;
    writer.add_all(state.values);
    writer.add_all(state.statistics);
    writer.add_all(state.tracked);
  };
  const auto read = [&](int process, ByteReader& reader) {
    if (process != 0) return;
    reader.get_all(state.values);
    reader.get_all(state.statistics);
    reader.get_all(state.tracked);
  };
  PeerExchange()(group, write, read);
}

void share_optimizer_state(SyncGroup& group, OptimizerState& state) {
  const RankLayout& layout = group.rank_layout();
  PeerExchange exchange;
  for (auto& slot : state.slots) {
    std::vector<float>& values = slot.second;
    const bool first_has_all = slot.first == kAveragedStatisticsSlot;
    const auto piece = [&](int process) {
      if (first_has_all) return std::span<float>(values).first(process == 0 ? values.size() : 0);
      return part_of(values, owned_by_process(std::ssize(values), process, layout));
    };
    exchange(
        group,
        [&](ByteWriter& writer) { writer.add_all(std::span<const float>(piece(layout.process))); },
        [&](int process, ByteReader& reader) { reader.get_all(piece(process)); });
  }
}

}  // namespace lockstep
