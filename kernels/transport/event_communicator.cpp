// The transport "event". A rank records an event behind its partial statistics; at the rendezvous
// every rank learns where the others' statistics are and which events to wait for, and issues the
// waits. The kernels that merge then read them in place: an exchange moves nothing and launches
// nothing. Statistics of a GPU whose memory cannot be reached from here are copied first.

#include <array>

#include "kernels/device/check_cuda.h"
#include "kernels/transport/gpu_communicator.h"
#include "kernels/transport/step_graph.h"

namespace lockstep::gpu {
namespace {

/// What a rank posts.
struct Mail {
  const float* data = nullptr;  // [2, C] on the rank's device, the layer's own
  const Event* written = nullptr;
  int ordinal = 0;  // of that device
};

/// What the ranks of a sync group have posted in one call.
struct Mails {
  std::vector<Mail> mails;      // [rank in the group]
  std::vector<StatSlot> slots;  // [rank in the group]
};

/// Hands every rank all mails. The answers are used in turn.
class Gather {
 public:
  explicit Gather(int ranks) {
    for (Mails& answer : answers_) {
      answer.mails.resize(static_cast<std::size_t>(ranks));
      answer.slots.resize(static_cast<std::size_t>(ranks));
    }
  }

  void gather(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
    if (messages.front().call.direction == Direction::kOther) return;
    turn_ = 1 - turn_;
    Mails& all = answers_[turn_];
    std::int64_t count = 0;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      all.mails[rank] = *static_cast<const Mail*>(messages[rank].payload);
      all.slots[rank] = {messages[rank].count, all.mails[rank].data};
      count += messages[rank].count;
    }
    for (SyncAnswer& answer : answers) answer = {count, &all};
  }

 private:
  std::array<Mails, 2> answers_;
  std::size_t turn_ = 0;
};

class EventEnd final : public GpuEnd {
 public:
  EventEnd(RendezvousGroup& group, int rank, std::shared_ptr<const GpuRun> run,
           std::shared_ptr<StepGraph> graph)
      : GpuEnd(group, rank, std::move(run)), graph_(std::move(graph)) {}

  void attach(Backend& own) override {
    GpuEnd::attach(own);
    for (Box& box : boxes_) box.written.emplace_back(ordinal());
    graph_->attach(rank());
  }

  bool can_record() const override { return true; }

  void record_step(const std::function<void()>& issue) override {
    const DeviceGuard guard(ordinal());
    if (rank() == 0) graph_->begin(stream());
    const Abandon abandon{*graph_, stream(), rank()};
    meet_all("the begin of a recording");
    capture(issue);
    meet_all("the end of a recording");
    if (rank() == 0) graph_->finish(stream());
    meet_all("the recorded step");
  }

  void replay_step() override {
    enter("replay", "the recorded step");
    const DeviceGuard guard(ordinal());
    if (rank() != 0) graph_->arrive(rank(), stream());
    meet_all("the recorded step");
    if (rank() == 0) graph_->launch(stream());
    meet_all("the launched step");
    if (rank() != 0) graph_->follow(stream());
  }

 protected:
  void before_wait() override {
    if (issuing_) graph_->give_turn();
  }
  void after_wait() override {
    if (issuing_) graph_->take_turn();
  }

 private:
  // Used in turn: a rank records for call i + 2 when every peer has left call i, and so has issued
  // its wait for the event of that call. Whoever writes the statistics of call i again comes after
  // the waits for every peer's event of call i + 1, which the peer recorded after it had issued its
  // reads of call i; or after a barrier of all streams (Communicator::exchange).
  struct Box {
    std::vector<Event> written;  // one
    std::vector<StatSlot> slots;
  };

  /// Ends a capture that an exception has left open.
  struct Abandon {
    StepGraph& graph;
    Stream stream;
    int rank;
    ~Abandon() {
      if (rank == 0) graph.abandon(stream);
    }
  };

  void capture(const std::function<void()>& issue) {
    const Issuing issuing(*this);
    if (rank() != 0) graph_->join(stream());
    issue();
    if (rank() != 0) graph_->arrive(rank(), stream());
  }

  /// Holds the turn, except while this rank waits.
  class Issuing {
   public:
    explicit Issuing(EventEnd& end) : end_(end) {
      end_.graph_->take_turn();
      end_.issuing_ = true;
    }
    ~Issuing() {
      end_.issuing_ = false;
      end_.graph_->give_turn();
    }
    Issuing(const Issuing&) = delete;
    Issuing& operator=(const Issuing&) = delete;

   private:
    EventEnd& end_;
  };

  std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                              const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    turn_ = 1 - turn_;
    Box& box = boxes_[turn_];
    Event& written = box.written.front();
    written.record(stream());
    mail_ = {local.data, &written, ordinal()};
    const SyncAnswer answer = meet({call, local.count, &mail_});
    const auto& all = *static_cast<const Mails*>(answer.payload);
    box.slots.assign(all.slots.begin(), all.slots.end());
    const auto own = static_cast<std::size_t>(rank() - group().first_rank(rank()));
    for (std::size_t peer = 0; peer < all.mails.size(); ++peer) {
      if (peer == own) continue;
      const Mail& mail = all.mails[peer];
      mail.written->make_wait(stream());
      if (run().peers.between(ordinal(), mail.ordinal)) continue;
      box.slots[peer].data = fetch(mail, peer, all.mails.size(), 2 * call.channels);
    }
    return box.slots;
  }

  const float* fetch(const Mail& mail, std::size_t peer, std::size_t ranks, std::int64_t floats) {
    float* all = grown(fetched_, turn_, static_cast<std::int64_t>(ranks) * floats);
    float* data = all + static_cast<std::int64_t>(peer) * floats;
    check_cuda(cudaMemcpyPeerAsync(data, ordinal(), mail.data, mail.ordinal,
                                   static_cast<std::size_t>(floats) * sizeof(float), stream()),
               "cudaMemcpyPeerAsync of statistics");
    return data;
  }

  const std::shared_ptr<StepGraph> graph_;
  bool issuing_ = false;  // into a capture
  std::array<Box, 2> boxes_;
  TwoBlocks fetched_;  // [ranks, 2, C] each: of peers whose memory cannot be read from here
  std::size_t turn_ = 0;
  Mail mail_;  // read by the callback while this rank waits
};

}  // namespace

std::unique_ptr<CommunicatorGroup> make_event_communicators(std::span<const Device> devices,
                                                            const CommunicatorOptions& options) {
  const auto run = std::make_shared<const GpuRun>(devices);
  const auto graph = std::make_shared<StepGraph>(run->ordinals);
  return std::make_unique<RendezvousGroup>(
      devices, options,
      [](int, int ranks) {
        const auto gather = std::make_shared<Gather>(ranks);
        return [gather](auto messages, auto answers) { gather->gather(messages, answers); };
      },
      [run, graph](RendezvousGroup& group, int rank) {
        return std::make_unique<EventEnd>(group, rank, run, graph);
      });
}

}  // namespace lockstep::gpu
