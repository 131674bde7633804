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
struct Ticket {
  explicit Ticket(int device) : written(device), ordinal(device) {}

  Event written;
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

  StatPost post(const SyncCall&, const ProcessGroup& group, const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    Ticket& ticket = next_ticket(group.partition);
    ticket.written.record(stream());
    give_turn();
    return {local, &ticket};
  }

  void meanwhile(const std::function<void()>& work) override {
    take_turn();
    work();
    give_turn();
  }

  std::span<const StatSlot> receive(const SyncCall& call, const ProcessGroup& group,
                                    const StatPosts& posts) override {
    take_turn();
    const DeviceGuard guard(ordinal());
    slots_.assign(posts.slots.begin(), posts.slots.end());
    float* next = nullptr;  // where a peer's statistics are copied to
    for (std::size_t peer = 0; peer < slots_.size(); ++peer) {
      if (peer == static_cast<std::size_t>(group.place)) continue;
      const Ticket& ticket = *static_cast<const Ticket*>(posts.tickets[peer]);
      ticket.written.make_wait(stream());
      if (run().peers.between(ordinal(), ticket.ordinal)) continue;
      if (next == nullptr) next = grown(fetched_, floats_of(call, slots_));
      fetch(call, ticket.ordinal, slots_[peer], next);
      next += floats_of(call, slots_[peer]);
    }
    return slots_;
  }

  void* arrive() override {
    void* const ticket = GpuTransport::arrive();
    give_turn();
    return ticket;
  }

  void depart(std::span<void* const> tickets) override {
    take_turn();
    GpuTransport::depart(tickets);
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
  // (Communicator::exchange).
  struct Tickets {
    explicit Tickets(int ordinal) : pair{Ticket(ordinal), Ticket(ordinal)} {}

    std::array<Ticket, 2> pair;
    std::size_t turn = 0;
  };

  /// Also when what was issued has failed.
  struct Release {
    std::unique_lock<std::mutex>& turn;
    ~Release() { turn = {}; }
  };

  Ticket& next_ticket(int partition) {
    while (tickets_.size() <= static_cast<std::size_t>(partition)) {
      tickets_.push_back(std::make_unique<Tickets>(ordinal()));
    }
    Tickets& tickets = *tickets_[static_cast<std::size_t>(partition)];
    tickets.turn = 1 - tickets.turn;
    return tickets.pair[tickets.turn];
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
  std::unique_lock<std::mutex> turn_;              // of a capture; none outside of one
  std::vector<std::unique_ptr<Tickets>> tickets_;  // [partition]
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

Transports make_event_transports(const TransportRanks& ranks) {
  const auto run = std::make_shared<const GpuRun>(ranks.devices);
  const auto graph = std::make_shared<StepGraph>(run->ordinals);
  Transports transports;
  for (int rank = 0; rank < static_cast<int>(ranks.devices.size()); ++rank) {
    transports.push_back(std::make_unique<EventTransport>(run, graph, rank));
  }
  return transports;
}

}  // namespace lockstep::gpu
