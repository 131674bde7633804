// Offsets by brute force, lifetimes by hand, and networks whose shared memory must not change a
// bit.

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/sync/sync_group.h"
#include "nn/graph/liveness.h"
#include "nn/graph/round_trips.h"
#include "nn/harness.h"
#include "nn/random_network.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

bool is_there(const Buffer& buffer, int step) {
  const bool away = buffer.away_first <= step && step <= buffer.away_last;
  return buffer.first <= step && step <= buffer.last && !away;
}

void check_no_overlap(const std::vector<Buffer>& buffers, std::size_t arena) {
  for (const Buffer& a : buffers) {
    CHECK(a.offset % kBufferAlignment == 0);
    CHECK(a.offset + a.bytes <= arena);
    for (const Buffer& b : buffers) {
      if (&a == &b || a.bytes == 0 || b.bytes == 0) continue;
      bool alive_together = false;
      for (int step = a.first; step <= a.last; ++step) {
        alive_together = alive_together || (is_there(a, step) && is_there(b, step));
      }
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      CHECK_FALSE((alive_together && overlap));
    }
  }
}

std::vector<Buffer> random_buffers(std::mt19937& random) {
  std::vector<Buffer> buffers(random() % 40);
  for (Buffer& buffer : buffers) {
    buffer.bytes = random() % 5 == 0 ? random() % 4 : random() % 100000;
    buffer.first = static_cast<int>(random() % 50);
    buffer.last = buffer.first + static_cast<int>(random() % 20);
    if (buffer.last - buffer.first < 3 || random() % 2 == 0) continue;
    buffer.away_first = buffer.first + 1;
    buffer.away_last = buffer.last - 1 - static_cast<int>(random() % 2);
  }
  return buffers;
}

void check_sharing(const Describe& describe, const Shape& input, const PlanOptions& plan) {
  PlanOptions apart = plan;
  apart.share_memory = false;
  TestNetwork shared(describe, input, plan);
  TestNetwork separate(describe, input, apart);
  CHECK(shared.network->planned_bytes() <= separate.network->planned_bytes());
  std::vector<StepContext> contexts{{.training = plan.training, .seed = 9}};
  if (!plan.training) contexts.push_back({.update_running_stats = false, .seed = 9});
  for (const StepContext& context : contexts) {
    for (std::uint32_t step = 0; step < 2; ++step) {
      const Floats images = random_floats(input.elements(), 40 + step);
      CHECK(shared.step(images, step, context) == separate.step(images, step, context));
    }
  }
}

/// A chain of layers of one input, each value of the given bytes.
Graph chain(std::vector<std::size_t> bytes) {
  Graph graph;
  for (const std::size_t size : bytes) graph.values.push_back({size, 1});
  for (int i = 0; i + 1 < static_cast<int>(bytes.size()); ++i) {
    GraphLayer layer;
    layer.inputs = {i};
    layer.output = i + 1;
    graph.layers.push_back(layer);
  }
  graph.outputs = {{static_cast<int>(bytes.size()) - 1, true}};
  return graph;
}

}  // namespace

TEST_CASE("offsets: buffers alive together never overlap") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Buffer> buffers = random_buffers(random);
    const std::size_t arena = assign_offsets(buffers);
    check_no_overlap(buffers, arena);
    CHECK(arena >= largest_live_bytes(buffers));
  }
}

TEST_CASE("offsets: a freed block is used again, the tightest that fits") {
  std::vector<Buffer> buffers{{1024, 0, 1}, {512, 0, 9}, {256, 2, 3}, {768, 2, 3}};
  CHECK(assign_offsets(buffers) == 1536);
  CHECK(assign_offsets(std::span<Buffer>{}) == 0);
}

TEST_CASE("offsets: what is on the host lends its place to others, from when it has left") {
  std::vector<Buffer> buffers{
      {.bytes = 1024, .first = 0, .last = 9, .away_first = 2, .away_last = 7},
      {.bytes = 1024, .first = 2, .last = 7},
      {.bytes = 256, .first = 1, .last = 1}};
  CHECK(assign_offsets(buffers) == 1024 + 256);
  CHECK(largest_live_bytes(buffers) == 1024 + 256);
  buffers[0].away_last = 6;
  CHECK(assign_offsets(buffers) == 2 * 1024);
  CHECK(largest_live_bytes(buffers) == 2 * 1024);
}

TEST_CASE("liveness: an evaluation keeps two values of a chain and the input") {
  Graph graph = chain({256, 512, 512, 512, 512, 256});
  graph.training = false;
  CHECK(plan_memory(graph).bytes == 256 + 512 + 512);
}

// The input of the layer before must outlive what is written to its output's place.
TEST_CASE("liveness: what is computed in place lies where its input does") {
  Graph graph = chain({256, 512, 512, 512, 256});
  graph.training = false;
  graph.layers[2].forward_in_place = true;
  const MemoryPlan plan = plan_memory(graph);
  CHECK(plan.data[2].buffer == plan.data[3].buffer);
  CHECK(plan.data[1].buffer != plan.data[2].buffer);
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(plan.data[3].buffer)];
  CHECK(buffer.first == 1);
  CHECK(buffer.last == 3);
  CHECK(plan.bytes == 256 + 512 + 512);
}

TEST_CASE("liveness: gradients exist only between something to learn and the output") {
  Graph graph = chain({256, 256, 256, 256});
  graph.layers[1].learns = true;
  graph.values.push_back({256, 1});
  GraphLayer dead;  // nobody reads its output
  dead.inputs = {2};
  dead.output = 4;
  dead.learns = true;
  graph.layers.push_back(dead);
  const MemoryPlan plan = plan_memory(graph);
  CHECK(plan.runs_backward == std::vector<bool>{false, true, true, false});
  CHECK(plan.grad[0].buffer == -1);
  CHECK(plan.grad[1].buffer == -1);
  CHECK(plan.grad[2].buffer >= 0);
  CHECK(plan.grad[4].buffer == -1);
}

// Peers read it in both directions: neither a value of the forward pass nor a gradient may lie
// there.
TEST_CASE(
    "liveness: what weight gradients read is kept until the exchange before which they may wait") {
  // Of four values; the third layer's weight gradients wait for the first one's exchange.
  Graph graph = chain({1024, 1024, 1024, 1024});
  graph.layers[0].learns = true;
  graph.layers[0].meets_in_backward = true;
  graph.layers[2].splits_backward = graph.layers[2].reads_input = true;
  graph.input_grad = true;
  const MemoryPlan plan = plan_memory(graph);
  CHECK(plan.weights_until == std::vector<int>{0, 1, 0});
  const int exchange = 2 * 3 - 0;
  CHECK(plan.buffers[plan.data[2].buffer].last == exchange);
  CHECK(plan.buffers[plan.grad[3].buffer].last == exchange);

  SUBCASE("of one layer at a time") {
    graph.layers[1].splits_backward = true;
    CHECK(plan_memory(graph).weights_until == std::vector<int>{0, 0, 2});
  }
  SUBCASE("not where the exchange is left out, because nobody needs the gradient behind it") {
    graph.input_grad = false;
    CHECK(plan_memory(graph).weights_until == std::vector<int>{0, 1, 2});
  }
}

// Twelve layers: the losses are step 12, backward of layer i is step 24 - i.
TEST_CASE("liveness: what the backward pass reads late waits on the host") {
  Graph graph = chain(std::vector<std::size_t>(13, 1 << 20));
  graph.values[3].bytes = graph.values[3].tile_bytes = 1024;  // not worth it
  for (GraphLayer& layer : graph.layers) layer.learns = layer.reads_input = true;
  const std::size_t kept = plan_memory(graph).bytes;
  graph.offload = true;
  const MemoryPlan plan = plan_memory(graph);
  CHECK(plan.bytes < kept - (std::size_t{5} << 20));
  std::vector<int> values;  // that travel
  for (const RoundTrip& trip : plan.round_trips) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(trip.buffer)];
    for (int value = 0; value < 13; ++value) {
      if (plan.data[static_cast<std::size_t>(value)].buffer != trip.buffer) continue;
      values.push_back(value);
      CAPTURE(value);
      CHECK(trip.last_use == value);  // forward of the layer that reads it
      CHECK(trip.next_use == 24 - value);
      CHECK(buffer.away_first == value + 3);
      CHECK(buffer.away_last == 24 - value - 3);
    }
  }
  std::ranges::sort(values);  // not the input, and not what is read again soon
  CHECK(values == std::vector<int>{1, 2, 4, 5, 6, 7, 8, 9});

  SUBCASE("but nothing where every value has memory of its own, or no backward pass comes") {
    graph.share_memory = false;
    CHECK(plan_memory(graph).round_trips.empty());
    graph.share_memory = true;
    graph.training = false;
    CHECK(plan_memory(graph).round_trips.empty());
  }
}

namespace {

/// Writes down what is asked of it: "s" and the number of what is sent, "f" fetched, "w" waited
/// for.
class RecordedOffload final : public Offload {
 public:
  explicit RecordedOffload(std::string& calls) : calls_(calls) {}
  void send(int tensor) override { calls_ += concat(" s", tensor); }
  void fetch(int tensor) override { calls_ += concat(" f", tensor); }
  void wait(int tensor) override { calls_ += concat(" w", tensor); }

 private:
  std::string& calls_;
};

}  // namespace

TEST_CASE("round trips: who leaves, is waited for, comes back and is needed at which step") {
  MemoryPlan plan;
  plan.buffers = {{.bytes = 1, .first = 0, .last = 9, .away_first = 3, .away_last = 5},
                  {.bytes = 1, .first = 1, .last = 8, .away_first = 3, .away_last = 6}};
  plan.round_trips = {{.buffer = 0, .last_use = 0, .next_use = 9},
                      {.buffer = 1, .last_use = 2, .next_use = 8}};
  std::string calls;
  RoundTrips trips(plan, std::make_unique<RecordedOffload>(calls));
  const auto run = [&](int first, int last) {
    for (int step = first; step <= last; ++step) {
      calls += concat(" ", step, ":");
      trips.before(step);
      trips.after(step);
    }
    return std::exchange(calls, "");
  };
  trips.begin();
  CHECK(run(0, 10) == " 0: s0 1: 2: s1 3: w0 w1 4: 5: 6: f0 7: f1 8: w1 9: w0 10:");
  // A pass that fails has left some under way, and another one begins.
  CHECK(run(0, 7) == " 0: s0 1: 2: s1 3: w0 w1 4: 5: 6: f0 7: f1");
  trips.begin();
  CHECK(std::exchange(calls, "") == " w0 w1");
  trips.begin();
  CHECK(calls.empty());
  CHECK(run(0, 2) == " 0: s0 1: 2: s1");
  trips.begin();
  CHECK(calls == " w0 w1");
}

TEST_CASE("liveness: saved memory that persists is lent to nothing else, other saved memory is") {
  std::mt19937 random(4);
  int shared = 0;
  for (int trial = 0; trial < 100; ++trial) {
    Graph graph = chain(std::vector<std::size_t>(12, 4096));
    for (GraphLayer& layer : graph.layers) {
      layer.learns = random() % 2 == 0;
      layer.reads_input = random() % 2 == 0;
      layer.saved_bytes = 1024 + random() % 4096;
      layer.saved_persists = random() % 2 == 0;
    }
    const MemoryPlan plan = plan_memory(graph);
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      const Buffer& saved = plan.buffers[static_cast<std::size_t>(plan.saved[i])];
      const auto overlaps = std::ranges::count_if(plan.buffers, [&](const Buffer& other) {
        return &other != &saved && other.bytes > 0 && saved.offset < other.offset + other.bytes &&
               other.offset < saved.offset + saved.bytes;
      });
      if (graph.layers[i].saved_persists) CHECK(overlaps == 0);
      if (!graph.layers[i].saved_persists && overlaps > 0) ++shared;
    }
  }
  CHECK(shared > 0);
}

TEST_CASE("random networks: nor does it where weight gradients wait for other ranks") {
  const BatchNormOptions sync{.mode = BatchNormMode::kSync};
  const Shape input{2, 4, 4, 3};
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const Describe describe = [seed](NetworkBuilder& net, Value* x) {
      return random_network(net, x, seed);
    };
    std::vector<StepResult> results(2);
    for (const bool share : {false, true}) {
      SyncGroup group(cpus(2));
      std::vector<std::unique_ptr<TestNetwork>> networks;
      for (int rank = 0; rank < 2; ++rank) {
        const PlanOptions plan{.training = true, .input_grad = true, .share_memory = share};
        networks.push_back(std::make_unique<TestNetwork>(describe, input, plan, sync));
      }
      std::vector<StepResult> steps(2);
      const auto thrown = run_ranks(2, [&](int rank) {
        const auto place = static_cast<std::size_t>(rank);
        const StepContext context{.communicator = group.at(rank), .seed = 9};
        steps[place] =
            networks[place]->step(random_floats(input.elements(), 40 + seed), 7, context);
      });
      for (const auto& failure : thrown) CHECK(text_of(failure) == "");
      CHECK(steps[0] == steps[1]);  // of the same images
      results[share ? 1 : 0] = steps[0];
    }
    CHECK(results[0] == results[1]);
  }
}

TEST_CASE("random networks: memory that is shared changes no bit") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const WithVariable engine("LOCKSTEP_CONVOLUTION", seed % 3 == 0 ? "onednn" : "winograd8");
    const Describe describe = [=](NetworkBuilder& net, Value* x) {
      return random_network(net, x, seed);
    };
    check_sharing(describe, {3, 4, 4, 2}, {.training = true, .input_grad = seed % 2 == 0});
    check_sharing(describe, {3, 4, 4, 2}, {.training = false});
  }
}

}  // namespace lockstep::test
