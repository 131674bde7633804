#include "lockstep/sync/sync_group.h"

#include <algorithm>
#include <thread>

#include "lockstep/core/check.h"
#include "sync/watchdog.h"

namespace lockstep {
namespace {

// About what it costs to fall asleep and be woken: whoever waits longer than that loses at most as
// much again.
constexpr std::chrono::microseconds kSpin{50};

/// How long a rank looks for the others before it sleeps. The threads of GPUs do little but issue
/// work, and one that is woken comes tens of microseconds late. Virtual devices on the CPU compute:
/// the core of a rank that looks is missing to the one that it waits for.
std::chrono::microseconds spin_of(std::span<const Device> devices) {
  const bool gpus = !devices.empty() && devices.front().kind == DeviceKind::kCuda;
  const bool room = devices.size() <= std::thread::hardware_concurrency();
  return gpus && room ? kSpin : std::chrono::microseconds{0};
}

/// What the ranks of a set have posted, for all of them to read.
struct Posted {
  explicit Posted(std::size_t ranks) : slots(ranks), tickets(ranks), posts{slots, tickets} {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  std::vector<StatSlot> slots;
  std::vector<void*> tickets;
  const StatPosts posts;
};

}  // namespace

/// The callback of a set of ranks: shows each of them what all have posted.
SyncMaster::Callback SyncGroup::show_posts(std::size_t ranks, CallbackCounts& counts) {
  return [all = std::make_shared<Posted>(ranks), &counts](std::span<const SyncMessage> messages,
                                                          std::span<SyncAnswer> answers) {
    std::int64_t count = 0;
    for (std::size_t place = 0; place < messages.size(); ++place) {
      const auto& post = *static_cast<const StatPost*>(messages[place].payload);
      all->slots[place] = post.slot;
      all->tickets[place] = post.ticket;
      count += post.slot.count;
    }
    std::fill(answers.begin(), answers.end(), SyncAnswer{count, &all->posts});
    ++counts[static_cast<std::size_t>(messages.front().call.direction)];
  };
}

SyncGroup::SyncGroup(std::span<const Device> devices, const SyncGroupOptions& options)
    : options_(options), spin_(spin_of(devices)), progress_(static_cast<int>(devices.size())) {
  failure_.add(*this);  // first, and so told last: barriers end faster than devices
  Transports transports = make_transports(devices, options.transport);
  if (options.all_reduce) sums_ = make_sum_transports(devices);
  const int ranks = static_cast<int>(devices.size());
  const RankPartition all = contiguous_groups(ranks, 0);
  joins_ = &add_master(all.front(),
                       [this](auto messages, auto answers) { answer_join(messages, answers); });
  add_partition(all);
  for (int rank = 0; rank < ranks; ++rank) {
    Transport& transport = *transports[rank];
    ends_.push_back(std::make_unique<Communicator>(*this, rank, std::move(transports[rank])));
    recorders_.push_back(transport.make_recorder(*ends_.back()));
    if (options.all_reduce) {
      all_reduces_.push_back(std::make_unique<AllReduce>(*ends_.back(), *sums_[rank]));
    }
  }
  watchdog_ = std::make_unique<Watchdog>(
      options.stall_timeout, [this] { return longest_wait(); },
      [this](std::exception_ptr stall) { abort(std::move(stall)); });
}

SyncGroup::~SyncGroup() = default;

AllReduce* SyncGroup::all_reduce(int rank) {
  return all_reduces_.empty() ? nullptr : all_reduces_[static_cast<std::size_t>(rank)].get();
}

Recorder* SyncGroup::recorder(int rank) { return recorders_[static_cast<std::size_t>(rank)].get(); }

SyncMaster& SyncGroup::make_master(SyncMaster::Callback callback) {
  return add_master(contiguous_groups(size(), 0).front(), std::move(callback));
}

SyncMaster& SyncGroup::add_master(std::vector<int> ranks, SyncMaster::Callback callback) {
  auto master = std::make_unique<SyncMaster>(std::move(ranks), std::move(callback), failure_,
                                             &progress_, spin_);
  const std::lock_guard lock(masters_mutex_);
  return *masters_.emplace_back(std::move(master));
}

void SyncGroup::add_partition(const RankPartition& sets) {
  Partition partition{sets, {}};
  for (const std::vector<int>& ranks : sets) {
    partition.masters.push_back(&add_master(ranks, show_posts(ranks.size(), callbacks_)));
  }
  partitions_.push_back(std::move(partition));
}

std::optional<int> SyncGroup::find_partition(const RankPartition& sets) const {
  const auto found = std::find_if(partitions_.begin(), partitions_.end(),
                                  [&](const Partition& joined) { return joined.sets == sets; });
  if (found == partitions_.end()) return std::nullopt;
  return static_cast<int>(found - partitions_.begin());
}

void SyncGroup::answer_join(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
  const auto wanted_by = [&](std::size_t rank) -> const RankPartition& {
    return *static_cast<const RankPartition*>(messages[rank].payload);
  };
  const RankPartition& sets = wanted_by(0);
  for (std::size_t rank = 1; rank < messages.size(); ++rank) {
    if (wanted_by(rank) == sets) continue;
    throw ReplicaError(concat("replica ", rank, " joins the process groups ",
                              to_string(wanted_by(rank)), " while replica 0 joins ",
                              to_string(sets),
                              ": every replica must join the same ones in the same order"));
  }
  add_partition(sets);
  ends_.front()->transport_->add_partition(sets);
  const auto number = static_cast<std::int64_t>(partitions_.size()) - 1;
  std::fill(answers.begin(), answers.end(), SyncAnswer{number, nullptr});
}

void SyncGroup::end_waits() {
  for (const auto& sums : sums_) sums->abort();
  for (const auto& end : ends_) end->transport_->abort();
}

std::optional<SyncMaster::Wait> SyncGroup::longest_wait() const {
  std::optional<SyncMaster::Wait> all;
  const std::lock_guard lock(masters_mutex_);
  for (const auto& master : masters_) {
    const auto wait = master->waiting();
    if (!wait) continue;
    if (!all) {
      all = wait;
    } else {
      all->longest = std::max(all->longest, wait->longest);
      all->report += "; " + wait->report;
    }
  }
  return all;
}

}  // namespace lockstep
