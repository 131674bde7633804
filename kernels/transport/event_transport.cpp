// The transport "event". A rank records an event behind its partial statistics; where the ranks
// meet every rank learns where the others' statistics are and which events to wait for, and issues
// the waits. The kernels that merge then read them in place: an exchange moves nothing and launches
// nothing. Statistics of a GPU whose memory cannot be reached from here are copied first.

#include <array>
#include <mutex>

#include "kernels/device/check_cuda.h"
#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/step_graph.h"
#include "lockstep/sync/communicator.h"

namespace lockstep::gpu {
namespace {

/// What a rank's peers wait for.
struct Written {
  explicit Written(int device) : event(device), ordinal(device) {}

  Event event;
  int ordinal;  // of the rank's device, where its statistics are
};

class EventTransport final : public GpuTransport {
 public:
  EventTransport(std::shared_ptr<const GpuRun> run, std::shared_ptr<StepGraph> graph, int rank)
      : GpuTransport(std::move(run), rank), graph_(std::move(graph)) {}

  void attach(Backend& own, SumTransport* sums) override {
    GpuTransport::attach(own, sums);
    graph_->attach(rank());
  }

  StatPost post(const SyncCall&, const Group& group, const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    Written& own = next_event(group.partition);
    own.event.record(stream());
    give_turn();
    return {local, &own};
  }

  void overlap(const std::function<void()>& work) override {
    take_turn();
    work();
    give_turn();
  }

  std::span<const StatSlot> receive(const SyncCall& call, const Group& group,
                                    const StatPosts& posts) override {
    take_turn();
    const DeviceGuard guard(ordinal());
    slots_.assign(posts.slots.begin(), posts.slots.end());
    float* next = nullptr;  // where a peer's statistics are copied to
    for (std::size_t peer = 0; peer < slots_.size(); ++peer) {
      if (peer == static_cast<std::size_t>(group.rank)) continue;
      const Written& written = *static_cast<const Written*>(posts.handles[peer]);
      written.event.make_wait(stream());
      if (run().peers.between(ordinal(), written.ordinal)) continue;
      if (next == nullptr) next = grown(fetched_, floats_of(call, slots_));
      fetch(call, written.ordinal, slots_[peer], next);
      next += floats_of(call, slots_[peer]);
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

  void fetch(const SyncCall& call, int peer_ordinal, StatSlot& slot, float* to) {
    const auto bytes = static_cast<std::size_t>(floats_of(call, slot)) * sizeof(float);
    check_cuda(cudaMemcpyPeerAsync(to, ordinal(), slot.data, peer_ordinal, bytes, stream()),
               "cudaMemcpyPeerAsync of statistics");
    slot.data = to;
  }

  const std::shared_ptr<StepGraph> graph_;
  std::unique_lock<std::mutex> turn_;            // of a capture; none outside of one
  std::vector<std::unique_ptr<Events>> events_;  // [partition]
  Growing fetched_;  // [ranks, parts, 2, C]: of peers whose memory cannot be read from here
  std::vector<StatSlot> slots_;
};

class EventRecorder final : public Recorder {
 public:
  EventRecorder(EventTransport& transport, Communicator& own)
      : transport_(transport), graph_(transport.graph()), own_(own) {}

  void record(const std::function<void()>& issue) override {
    const DeviceGuard guard(transport_.ordinal());
    if (master()) graph_.begin(stream());
    const Abandon abandon{*this};
    own_.meet("the begin of a recording");
    transport_.issue_in_turn([&] {
      if (!master()) graph_.join(stream());
      issue();
      if (!master()) graph_.arrive(own_.rank(), stream());
    });
    own_.meet("the end of a recording");
    if (master()) graph_.finish(stream());
    own_.meet("the recorded step");
  }

  void replay() override {
    own_.enter("replay", "the recorded step");
    const DeviceGuard guard(transport_.ordinal());
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
