#include "lockstep/sync/communicator.h"

#include <algorithm>

#include "core/profiler.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/sync_group.h"
#include "sync/all_reduce.h"
#include "sync/describe.h"
#include "sync/process_groups.h"
#include "sync/wait_timer.h"

namespace lockstep {

Communicator::Communicator(SyncGroup& group, int rank, std::unique_ptr<Transport> transport)
    : group_(group), rank_(rank), transport_(std::move(transport)) {
  enter_group(0);
}

Communicator::~Communicator() = default;

int Communicator::size() const { return group_.size(); }

void Communicator::attach(Backend& backend) {
  SumTransport* const sums =
      group_.sums_.empty() ? nullptr : group_.sums_[group_.own_index(rank_)].get();
  transport_->attach(backend, sums);
  if (sums == nullptr) return;
  constexpr std::int64_t kOfAllProcesses = 1;  // SyncCall::channels: none would be of this one's
  meet_all(SyncCall{"the set-up of the all-reduce", Direction::kOther, 0, kOfAllProcesses}, {});
  sums->attach(backend);
}

int Communicator::join(const RankPartition& partition) {
  const RankPartition sets = ascending(partition, size());
  std::optional<int> number = group_.groups_->find(sets);
  if (!number) {
    enter("joining", "process groups");
    number = group_.groups_->join(rank_ - group_.layout_.first_rank(), sets);
    enter_group(*number);
  }
  return *number;
}

void Communicator::enter_group(int partition) {
  const RankPartition& sets = group_.groups_->sets(partition);
  for (std::size_t set = 0; set < sets.size(); ++set) {
    const std::vector<int>& ranks = sets[set];
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    if (own == ranks.end()) continue;
    const auto first = std::lower_bound(ranks.begin(), own, group_.layout_.first_rank());
    groups_.push_back({partition, static_cast<int>(set), ranks,
                       static_cast<int>(own - ranks.begin()), static_cast<int>(own - first)});
  }
}

bool Communicator::hook_allows(const SyncCall& call) const {
  const auto& hook = group_.options_.hook;
  return !hook || hook(rank_, call);
}

std::span<const StatSlot> Communicator::all_show(const SyncCall& call, const StatSlot& local,
                                                 const std::function<void()>& meanwhile) {
  LOCKSTEP_CHECK(call.partition >= 0 && call.partition < static_cast<int>(groups_.size()),
                 "replica ", rank_, " exchanges in process groups ", call.partition,
                 ", which it has not joined");
  LOCKSTEP_CHECK(call.layer != nullptr && call.channels >= 0, "replica ", rank_, " exchanges ",
                 call.channels, " channels of ", call.layer == nullptr ? "no layer" : call.layer);
  LOCKSTEP_CHECK(local.data != nullptr || local.parts == 0 || call.channels == 0, "replica ", rank_,
                 " shows null for ", local.parts, " x 2 x ", call.channels, " numbers of ",
                 call.layer, "; give the memory of its slot, also with a count of 0");
  const ProfiledRange range("exchange", call.channels);
  enter(to_string(call.direction), call.layer);
  leave_if_failed();
  if (!hook_allows(call)) {
    own_ = local;
    return {&own_, 1};
  }
  const Group& group = groups_[call.partition];
  const StatPost post = transport_->post(call, group, local);
  const StatPosts posts = meet_in(group, call, post, exchange_wait_, meanwhile);
  return transport_->receive(call, group, posts);
}

void Communicator::barrier(const char* where) {
  enter("barrier", where);
  const SyncCall call{where, Direction::kOther, 0, 0};
  if (!hook_allows(call)) return;
  transport_->depart(meet_all(call, {{}, transport_->arrive()}).handles);
}

void Communicator::meet(const char* where) { meet_all({where, Direction::kOther, 0, 0}, {}); }

StatPosts Communicator::meet_in(const Group& group, const SyncCall& call, const StatPost& post,
                                double& waited, const std::function<void()>& meanwhile) {
  auto& barrier = group_.groups_->barrier(group.partition, group.set).barrier();
  {
    const WaitTimer timer(waited);  // who posts last may wait for other processes
    barrier.post(group.own_rank, call, post);
  }
  if (meanwhile) transport_->meanwhile(meanwhile);
  const WaitTimer timer(waited);
  const StatPosts posts = barrier.await(group.own_rank);
  if (group.partition == 0) ++barriers_of_all_;
  return posts;
}

// In the rank's smaller groups first: a rank that left out its last call there meets the others'
// call and is named at once, where a meeting of all would leave both sides waiting.
StatPosts Communicator::meet_all(const SyncCall& call, const StatPost& post) {
  for (std::size_t partition = groups_.size() - 1; partition > 0; --partition) {
    meet_in(groups_[partition], call, {}, barrier_wait_);
  }
  return meet_in(groups_[0], call, post, barrier_wait_);
}

void Communicator::leave_if_failed() const {
  const std::exception_ptr cause = group_.failure_.raised() ? group_.failure() : nullptr;
  if (cause) throw PeerAborted(concat("replica ", rank_, " leaves, because of: ", describe(cause)));
}

void Communicator::enter(const char* activity, const char* place) {
  group_.progress_.enter(rank_, activity, place);
}

void Communicator::begin_step(std::int64_t step) { group_.progress_.set_step(rank_, step); }

// Threads that share it write over where the others are; no watchdog reads it.
Communicator& lone_rank() {
  const Device device;
  static SyncGroup group({&device, 1}, {.stall_timeout = {}});
  return group.at(0);
}

}  // namespace lockstep
