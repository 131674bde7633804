#include "sync/world_link.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep {

WorldLink::WorldLink(World& world, const RankLayout& layout, const Failure& failure,
                     const Progress& progress)
    : world_(world),
      layout_(layout),
      failure_(failure),
      progress_(progress),
      peers_(layout.peers()),
      said_(static_cast<std::size_t>(layout.processes())) {}

void WorldLink::exchange(int channel, std::span<const int> peers,
                         std::span<const std::span<const std::byte>> out, std::span<Bytes> in) {
  try {
    world_.exchange(channel, peers, out, in, [this] { return failure_.raised(); });
  } catch (const PeerAborted&) {
    throw;
  } catch (const ReplicaError& error) {
    throw ReplicaError(explain_failure(error.what()));
  }
}

Bytes WorldLink::broadcast(const Bytes& own) {
  const bool first = world_.first();
  const std::vector<std::span<const std::byte>> out(said_.size(),
                                                    first ? own : std::span<const std::byte>());
  std::vector<Bytes> in(said_.size());
  exchange(kStepChannel, peers_, out, in);
  return first ? own : in.front();
}

void WorldLink::all_gather(std::span<const std::byte> own, std::vector<Bytes>& all) {
  all.resize(said_.size());
  if (!peers_.empty()) {
    std::fill(said_.begin(), said_.end(), own);
    struct Gathering {
      WorldLink& link;
      explicit Gathering(WorldLink& of) : link(of) { link.mark_gathering(threading::Clock::now()); }
      ~Gathering() { link.mark_gathering(std::nullopt); }
    };
    const Gathering watched(*this);
    try {
      exchange(kControlChannel, peers_, said_, all);
    } catch (const PeerAborted&) {  // the watchdog, or a replica, has said why
      if (const std::exception_ptr cause = failure_.cause()) std::rethrow_exception(cause);
      throw;
    }
  }
  all[static_cast<std::size_t>(layout_.process)].assign(own.begin(), own.end());
}

std::string WorldLink::explain_failure(const std::string& heard) const {
  return heard + unanswered() + "; heard at " + progress_.describe(layout_.first_rank());
}

std::string WorldLink::unanswered() const {
  std::string text;
  for (const int process : world_.waiting_for()) {
    text += "; no answer from " + layout_.describe(process);
  }
  return text;
}

void WorldLink::mark_gathering(std::optional<threading::Clock::time_point> since) {
  const std::lock_guard lock(mutex_);
  gathering_since_ = since;
}

std::optional<AnyBarrier::Wait> WorldLink::gathering() const {
  const std::lock_guard lock(mutex_);
  if (!gathering_since_) return std::nullopt;
  // Between steps another process may have work that is its alone, a checkpoint to write or more
  // images to evaluate: it is stalled when nothing is heard of it at all.
  threading::Clock::duration silence{};
  for (const int peer : peers_) silence = std::max(silence, world_.silence_of(peer));
  return AnyBarrier::Wait{std::min(threading::Clock::now() - *gathering_since_, silence),
                          "this process waits for what the others say between two steps"};
}

}  // namespace lockstep
