// The transport "event". A rank records an event behind its partial statistics; where the ranks
// meet every rank learns where the others' statistics are and which events to wait for, and issues
// the waits. The kernels that merge then read them where they lie: an exchange moves nothing and
// launches nothing. Where a peer cannot reach the rank's memory they lie on the host
// (pinned_slots.h).
//
// Waits of R ranks for one another are R - 1 for each. Over several GPUs every wait is one for
// another device; from kJoinFrom of them on a stream of its own waits for all ranks, and each rank
// for that stream alone: 2 R waits instead of R (R - 1), one of them in the rank's own stream. In a
// graph they are edges through one node.

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <set>

#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/pinned_slots.h"
#include "kernels/transport/step_graph.h"
#include "lockstep/sync/communicator.h"

namespace lockstep::gpu {
namespace {

/// Two GPUs wait for each other once, and of three nobody waits less often by a detour. From four
/// on all waits together are fewer, too.
constexpr std::size_t kJoinFrom = 4;

/// What a rank's peers wait for.
struct Written {
  explicit Written(int device) : event(device), ordinal(device) {}

  Event event;
  const int ordinal;           // of the rank's device
  bool captured = false;       // recorded into a graph
  const Event* all = nullptr;  // of the set's first rank: behind all ranks' events; null: none
};

/// Where a set of ranks is joined.
struct Join {
  explicit Join(int ordinal) : stream(ordinal), all(ordinal) {}

  StreamOwner stream;
  // One will do: it is recorded for call i + 1 of a partition when every rank has posted that, and
  // so has issued its wait for call i.
  Event all;
};

class EventTransport final : public GpuTransport {
 public:
  EventTransport(std::shared_ptr<const GpuRun> run, std::shared_ptr<StepGraph> graph, int rank)
      : GpuTransport(std::move(run), rank), graph_(std::move(graph)) {}

  void attach(Backend& own, SumTransport* sums) override {
    GpuTransport::attach(own, sums);
    graph_->attach(rank());
    if (run().peers.between_all(run().ordinals)) return;
    host_slots_ = std::make_shared<PinnedSlots>(ordinal());
    backend().write_slots_to(host_slots_);
  }

  StatPost post(const SyncCall& call, const Group& group, const StatSlot& local) override {
    make_current(ordinal());
    own_ = local;
    StatSlot shown = local;
    if (host_slots_ != nullptr && local.data != nullptr && !is_reached_by(group)) {
      shown.data = host_slots_->show(local.data, floats_of(call, local), stream());
    }
    Written& own = next_event(group.partition);
    own.event.record(stream());
    own.captured = turn_.mutex() != nullptr;
    own.all = nullptr;
    give_turn();
    return {shown, &own, this};
  }

  void all_posted(const SyncCall& call, std::span<void* const> handles) override {
    Written& first = written(handles.front());
    if (!joins(call.partition, handles)) return;
    // Ranks may be busy with what they do meanwhile.
    const auto turn = first.captured ? graph_->take_turn() : std::unique_lock<std::mutex>();
    make_current(ordinal());
    std::unique_ptr<Join>& join = events_[static_cast<std::size_t>(call.partition)]->join;
    if (join == nullptr) join = std::make_unique<Join>(ordinal());
    for (void* const handle : handles) written(handle).event.make_wait(join->stream.get());
    if (first.captured) graph_->gather(join->stream.get());
    join->all.record(join->stream.get());
    first.all = &join->all;
  }

  void meanwhile(const std::function<void()>& work) override {
    take_turn();
    work();
    give_turn();
  }

  std::span<const StatSlot> receive(const SyncCall&, const Group& group,
                                    const StatPosts& posts) override {
    take_turn();
    make_current(ordinal());
    slots_.assign(posts.slots.begin(), posts.slots.end());
    const auto own = static_cast<std::size_t>(group.rank);
    slots_[own] = own_;
    if (const Event* all = written(posts.handles.front()).all) {
      backend().wait_for(*all);
      return slots_;
    }
    for (std::size_t peer = 0; peer < slots_.size(); ++peer) {
      if (peer != own) backend().wait_for(written(posts.handles[peer]).event);
    }
    return slots_;
  }

  void* arrive() override {
    void* const handle = GpuTransport::arrive();
    give_turn();
    return handle;
  }

  void depart(std::span<void* const> handles) override {
    take_turn();
    GpuTransport::depart(handles);
  }

  std::unique_ptr<Recorder> make_recorder(Communicator& own) override;

  StepGraph& graph() { return *graph_; }

  /// `issue` goes into a capture: this rank holds the turn, except while it waits for others.
  void issue_in_turn(const std::function<void()>& issue) {
    turn_ = graph_->take_turn();
    const Release release{turn_};
    issue();
  }

 private:
  // Used in turn: a rank records for call i + 2 of a partition when every peer has posted call
  // i + 1, and so has issued its wait for the event of call i. Whoever writes the statistics of
  // call i again comes after the waits for every peer's event of call i + 1, which the peer
  // recorded after it had issued its reads of call i; or after a barrier of all streams
  // (Communicator::all_show).
  struct Events {
    explicit Events(int ordinal) : pair{Written(ordinal), Written(ordinal)} {}

    std::array<Written, 2> pair;
    std::size_t turn = 0;
    std::optional<bool> joins;   // of the set's first rank: whether it joins them
    std::unique_ptr<Join> join;  // once it has
  };

  /// Also when what was issued has failed.
  struct Release {
    std::unique_lock<std::mutex>& turn;
    ~Release() { turn = {}; }
  };

  Written& next_event(int partition) {
    while (events_.size() <= static_cast<std::size_t>(partition)) {
      events_.push_back(std::make_unique<Events>(ordinal()));
    }
    Events& events = *events_[static_cast<std::size_t>(partition)];
    events.turn = 1 - events.turn;
    return events.pair[events.turn];
  }

  void give_turn() {
    if (turn_.mutex() != nullptr) turn_.unlock();
  }
  void take_turn() {
    if (turn_.mutex() != nullptr) turn_.lock();
  }

  static Written& written(void* handle) { return *static_cast<Written*>(handle); }

  bool is_reached_by(const Group& group) const {
    return std::all_of(group.ranks.begin(), group.ranks.end(), [this](int peer) {
      return run().peers.between(run().ordinals[static_cast<std::size_t>(peer)], ordinal());
    });
  }

  bool joins(int partition, std::span<void* const> handles) {
    std::optional<bool>& joins = events_[static_cast<std::size_t>(partition)]->joins;
    if (joins) return *joins;
    std::set<int> devices;
    for (void* const handle : handles) devices.insert(written(handle).ordinal);
    joins = devices.size() >= kJoinFrom;
    return *joins;
  }

  const std::shared_ptr<StepGraph> graph_;
  std::unique_lock<std::mutex> turn_;            // of a capture; none outside of one
  std::vector<std::unique_ptr<Events>> events_;  // [partition]
  std::shared_ptr<PinnedSlots> host_slots_;      // null: all peers reach this device's memory
  StatSlot own_;                                 // of the present call
  std::vector<StatSlot> slots_;
};

class EventRecorder final : public Recorder {
 public:
  EventRecorder(EventTransport& transport, Communicator& own)
      : transport_(transport), graph_(transport.graph()), own_(own) {}

  void record(const std::function<void()>& issue) override {
    make_current(transport_.ordinal());
    if (master()) graph_.begin(stream());
    const Abandon abandon{*this};
    own_.meet("the begin of a recording");
    transport_.issue_in_turn([&] {
      if (!master()) graph_.join(transport_.backend());
      issue();
      if (!master()) graph_.arrive(own_.rank(), stream());
    });
    own_.meet("the end of a recording");
    if (master()) graph_.finish(stream());
    own_.meet("the recorded step");
  }

  void replay() override {
    own_.enter("replay", "the recorded step");
    make_current(transport_.ordinal());
    if (!master()) graph_.arrive(own_.rank(), stream());
    own_.meet("the recorded step");
    if (master()) graph_.launch(stream());
    own_.meet("the launched step");
    if (!master()) graph_.follow(stream());
  }

 private:
  /// Ends a capture that an exception has left open.
  struct Abandon {
    EventRecorder& recorder;
    ~Abandon() {
      if (recorder.master()) recorder.graph_.abandon(recorder.stream());
    }
  };

  bool master() const { return own_.rank() == 0; }
  Stream stream() const { return transport_.stream(); }

  EventTransport& transport_;
  StepGraph& graph_;
  Communicator& own_;
};

std::unique_ptr<Recorder> EventTransport::make_recorder(Communicator& own) {
  return std::make_unique<EventRecorder>(*this, own);
}

}  // namespace

Transports make_event_transports(const RankLayout& layout, const Broadcast&) {
  const auto run = std::make_shared<const GpuRun>(layout.own_devices());
  const auto graph = std::make_shared<StepGraph>(run->ordinals);
  Transports transports;
  for (int rank = 0; rank < layout.own_ranks(); ++rank) {
    transports.push_back(std::make_unique<EventTransport>(run, graph, rank));
  }
  return transports;
}

}  // namespace lockstep::gpu
