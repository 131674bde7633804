#include "lockstep/sync/sync_group.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include "lockstep/core/check.h"
#include "sync/all_reduce.h"
#include "sync/statistics_barrier.h"
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

}  // namespace

std::vector<int> SyncGroup::own_ranks_of(const std::vector<int>& ranks) const {
  std::vector<int> own;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(own),
               [this](int rank) { return layout_.process_of(rank) == layout_.process; });
  return own;
}

namespace {

void check_processes(const RankLayout& layout, const SyncGroupOptions& options) {
  if (layout.processes() == 1) return;
  const Device& first = layout.devices.front();
  const auto other = std::find_if(layout.devices.begin(), layout.devices.end(),
                                  [&](const Device& device) { return device.kind != first.kind; });
  if (other != layout.devices.end()) {
    const auto rank = static_cast<int>(other - layout.devices.begin());
    throw ConfigError(concat("expected all processes on cpu devices or all on GPUs, got ",
                             layout.describe_rank(0), " and ", layout.describe_rank(rank),
                             "; give every process devices cpu:N, or every one cuda:..."));
  }
  if (options.transport == TransportKind::kEvent && first.kind == DeviceKind::kCuda) {
    throw ConfigError(
        "SyncGroupOptions::transport = \"event\" reads the memory of other GPUs, which those of "
        "other processes "
        "do not show; use \"host\", \"nccl\" or \"auto\" with several processes");
  }
  if (options.all_reduce && first.kind == DeviceKind::kCpu) {
    throw ConfigError(
        "GradientExchangeOptions::kind = \"all_reduce\" works on cpu devices of one process only; "
        "use "
        "\"owner\"");
  }
}

}  // namespace

void SyncGroup::exchange(int channel, std::span<const int> peers,
                         std::span<const std::span<const std::byte>> out, std::span<Bytes> in) {
  try {
    world().exchange(channel, peers, out, in, [this] { return failure_.raised(); });
  } catch (const PeerAborted&) {
    throw;
  } catch (const ReplicaError& error) {
    throw ReplicaError(explain_failure(error.what()));
  }
}

std::string SyncGroup::explain_failure(const std::string& heard) const {
  std::string text = heard;
  for (const int process : world().waiting_for()) {
    text += "; no answer from " + layout_.describe(process);
  }
  return text + "; heard at " + progress_.describe(layout_.first_rank());
}

/// In the order of what happens in a step, where process groups are joined, or before it.
Bytes SyncGroup::broadcast(const Bytes& own) {
  const bool first = world().first();
  const std::vector<std::span<const std::byte>> out(said_.size(),
                                                    first ? own : std::span<const std::byte>());
  std::vector<Bytes> in(said_.size());
  exchange(kStepChannel, peers_, out, in);
  return first ? own : in.front();
}

void SyncGroup::all_gather(std::span<const std::byte> own, std::vector<Bytes>& all) {
  all.resize(said_.size());
  if (!peers_.empty()) {
    std::fill(said_.begin(), said_.end(), own);
    struct Gathering {
      SyncGroup& group;
      explicit Gathering(SyncGroup& of) : group(of) {
        group.mark_gathering(threading::Clock::now());
      }
      ~Gathering() { group.mark_gathering(std::nullopt); }
    };
    const Gathering watched(*this);
    try {
      exchange(kControlChannel, peers_, said_, all);
    } catch (const PeerAborted&) {  // the watchdog, or a replica, has said why
      if (const std::exception_ptr cause = failure()) std::rethrow_exception(cause);
      throw;
    }
  }
  all[static_cast<std::size_t>(layout_.process)].assign(own.begin(), own.end());
}

SyncGroup::SyncGroup(std::span<const Device> devices, const SyncGroupOptions& options)
    : options_(options),
      spin_(spin_of(devices)),
      layout_(make_rank_layout(options.world, devices)),
      progress_(layout_.own_ranks(), layout_.first_rank()),
      peers_(layout_.peers()),
      said_(static_cast<std::size_t>(layout_.processes())) {
  check_processes(layout_, options);
  failure_.add(*this);  // first, and so told last: barriers end faster than devices
  const auto from_first = [this](const Bytes& own) { return broadcast(own); };
  Transports transports = make_transports(layout_, from_first, options.transport);
  if (options.all_reduce) sums_ = make_sum_transports(layout_, from_first);
  on_host_ = transports.front()->on_host();
  joins_ = &make_barrier<const RankPartition*, int>(
      [this](const SyncCall&, std::span<const RankPartition* const> wanted,
             std::span<int> answers) { std::ranges::fill(answers, answer_join(wanted)); });
  add_partition(contiguous_groups(size(), 0));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Transport& transport = *transports[i];
    const int rank = layout_.first_rank() + static_cast<int>(i);
    communicators_.push_back(std::make_unique<Communicator>(*this, rank, std::move(transports[i])));
    Communicator& own = *communicators_.back();
    recorders_.push_back(transport.make_recorder(own));
    if (options.all_reduce) all_reduces_.push_back(std::make_unique<AllReduce>(own, *sums_[i]));
  }
  watchdog_ = std::make_unique<Watchdog>(
      options.stall_timeout, [this] { return longest_wait(); },
      [this](std::exception_ptr stall) { abort(std::move(stall)); });
}

SyncGroup::~SyncGroup() = default;

std::size_t SyncGroup::own_index(int rank) const {
  const int first = layout_.first_rank();
  LOCKSTEP_CHECK(rank >= first && rank < first + layout_.own_ranks(), "there is no rank ", rank,
                 " here: this process has the ranks ", first, " to ",
                 first + layout_.own_ranks() - 1);
  return static_cast<std::size_t>(rank - first);
}

AllReduce* SyncGroup::all_reduce(int rank) {
  return all_reduces_.empty() ? nullptr : all_reduces_[own_index(rank)].get();
}

Recorder* SyncGroup::recorder(int rank) { return recorders_[own_index(rank)].get(); }

void SyncGroup::add_partition(const RankPartition& sets) {
  GroupBarriers barriers;
  for (const std::vector<int>& ranks : sets) {
    const int channel = partitions_.empty() ? int{kStepChannel} : channels_++;
    barriers.push_back(own_ranks_of(ranks).empty()
                           ? nullptr
                           : std::make_unique<StatisticsBarrier>(*this, ranks, channel));
  }
  partitions_.push_back(sets);
  barriers_.push_back(std::move(barriers));
}

std::optional<int> SyncGroup::find_partition(const RankPartition& sets) const {
  const auto found = std::ranges::find(partitions_, sets);
  if (found == partitions_.end()) return std::nullopt;
  return static_cast<int>(found - partitions_.begin());
}

/// The number of the partition.
int SyncGroup::answer_join(std::span<const RankPartition* const> wanted) {
  const RankPartition& sets = *wanted.front();
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (*wanted[rank] == sets) continue;
    const int first = layout_.first_rank();
    throw ReplicaError(concat("replica ", first + static_cast<int>(rank),
                              " joins the process groups ", to_string(*wanted[rank]),
                              " while replica ", first, " joins ", to_string(sets),
                              ": every replica must join the same ones in the same order"));
  }
  add_partition(sets);
  communicators_.front()->transport_->add_partition(sets);
  return static_cast<int>(partitions_.size()) - 1;
}

void SyncGroup::end_waits() {
  for (const auto& sums : sums_) sums->abort();
  for (const auto& own : communicators_) own->transport_->abort();
}

void SyncGroup::mark_gathering(std::optional<threading::Clock::time_point> since) {
  const std::lock_guard lock(gather_mutex_);
  gathering_since_ = since;
}

std::optional<SyncMaster::Wait> SyncGroup::gathering() const {
  const std::lock_guard lock(gather_mutex_);
  if (!gathering_since_) return std::nullopt;
  // Between steps another process may have work that is its alone, a checkpoint to write or more
  // images to evaluate: it is stalled when nothing is heard of it at all.
  threading::Clock::duration silence{};
  for (const int peer : peers_) silence = std::max(silence, world().silence_of(peer));
  return SyncMaster::Wait{std::min(threading::Clock::now() - *gathering_since_, silence),
                          "this process waits for what the others say between two steps"};
}

std::optional<SyncMaster::Wait> SyncGroup::longest_wait() const {
  std::optional<SyncMaster::Wait> all = gathering();
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
  if (all) {
    for (const int process : world().waiting_for()) {
      all->report += "; no answer from " + layout_.describe(process);
    }
  }
  return all;
}

RankGuard::RankGuard(SyncGroup& group, int rank)
    : group_(group), rank_(rank), exceptions_(std::uncaught_exceptions()) {
  static_cast<void>(group.at(rank));
}

RankGuard::~RankGuard() {
  if (finished_) return;
  const char* how = std::uncaught_exceptions() > exceptions_ ? " left by an exception"
                                                             : " left before it was finished";
  group_.abort(std::make_exception_ptr(
      ReplicaError(concat(group_.rank_layout().describe_rank(rank_), how, "; last seen at ",
                          group_.progress().describe(rank_)))));
}

}  // namespace lockstep
