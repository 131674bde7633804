#include "lockstep/sync/sync_group.h"

#include <algorithm>
#include <thread>

#include "lockstep/core/check.h"
#include "sync/all_reduce.h"
#include "sync/describe.h"
#include "sync/process_groups.h"
#include "sync/watchdog.h"
#include "sync/world_link.h"

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

void add_wait(const AnyBarrier::Wait& wait, std::optional<AnyBarrier::Wait>& all) {
  if (!all) {
    all = wait;
    return;
  }
  all->longest = std::max(all->longest, wait.longest);
  all->report += "; " + wait.report;
}

std::string describe_device_wait(const RankLayout& layout, int rank,
                                 std::chrono::duration<double> waited, const Progress& progress) {
  return concat(
      "replica ", rank, " has waited ", describe_seconds(waited.count()), " for ",
      to_string(layout.devices[static_cast<std::size_t>(rank)]),
      ", which does not finish what it was given (", progress.describe(rank),
      "); look for errors of this GPU (Xid in dmesg; nvidia-smi may have to reset it) and "
      "resume the run from its last checkpoint, or raise run.stall_timeout where steps "
      "take this long");
}

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
        "transport = \"event\" reads the memory of other GPUs, which those of other processes do "
        "not show; use \"host\", \"nccl\" or \"auto\" with several processes");
  }
  if (options.all_reduce && first.kind == DeviceKind::kCpu) {
    throw ConfigError(
        "gradient_exchange = \"all_reduce\" works on cpu devices of one process only; use "
        "\"owner\"");
  }
}

}  // namespace

void SyncGroup::exchange(int channel, std::span<const int> peers,
                         std::span<const std::span<const std::byte>> out, std::span<Bytes> in) {
  link_->exchange(channel, peers, out, in);
}

std::string SyncGroup::explain_failure(const std::string& heard) const {
  return link_->explain_failure(heard);
}

void SyncGroup::all_gather(std::span<const std::byte> own, std::vector<Bytes>& all) {
  link_->all_gather(own, all);
}

SyncGroup::SyncGroup(std::span<const Device> devices, const SyncGroupOptions& options)
    : options_(options),
      spin_(spin_of(devices)),
      layout_(make_rank_layout(options.world, devices)),
      progress_(layout_.own_ranks(), layout_.first_rank()),
      link_(std::make_unique<WorldLink>(options.world, layout_, failure_, progress_)) {
  check_processes(layout_, options);
  failure_.add(*this);  // first, and so told last: barriers end faster than devices
  const auto from_first = [this](const Bytes& own) { return link_->broadcast(own); };
  Transports transports = make_transports(layout_, from_first, options.transport);
  if (options.all_reduce) sums_ = make_sum_transports(layout_, from_first);
  on_host_ = transports.front()->on_host();
  groups_ = std::make_unique<ProcessGroups>(*this, [this](const RankPartition& sets) {
    communicators_.front()->transport_->add_partition(sets);
  });
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
  const std::size_t own = own_index(rank);  // which says whose ranks are here
  return all_reduces_.empty() ? nullptr : all_reduces_[own].get();
}

Recorder* SyncGroup::recorder(int rank) { return recorders_[own_index(rank)].get(); }

void SyncGroup::end_waits() {
  for (const auto& sums : sums_) sums->abort();
  for (const auto& own : communicators_) own->transport_->abort();
}

std::optional<AnyBarrier::Wait> SyncGroup::longest_wait() const {
  std::optional<AnyBarrier::Wait> all = link_->gathering();
  const std::lock_guard lock(barriers_mutex_);
  for (const auto& master : barriers_) {
    if (const auto wait = master->waiting()) add_wait(*wait, all);
  }
  // A device that hangs keeps no rank from a barrier: all wait for their devices behind the step.
  for (const auto& own : communicators_) {
    const auto waited = own->transport_->device_wait();
    if (!waited || *waited < options_.stall_timeout) continue;
    add_wait({*waited, describe_device_wait(layout_, own->rank(), *waited, progress_)}, all);
  }
  if (all) all->report += link_->unanswered();
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
