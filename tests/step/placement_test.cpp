// Synchronized training comes to the same bytes however a global batch is spread over CPU devices
// and threads.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/core/check.h"
#include "lockstep/nn/models.h"
#include "step/gradient_tree.h"
#include "step/placed_training.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

/// Of this many threads of the machine, which the replicas share; no more than there were.
class Threads {
 public:
  explicit Threads(int count) {
    if (const char* before = std::getenv("OMP_NUM_THREADS"); before != nullptr) {
      before_ = before;
      count = std::min(count, std::max(1, std::atoi(before)));
    }
    setenv("OMP_NUM_THREADS", std::to_string(count).c_str(), 1);
  }
  ~Threads() {
    if (before_.empty())
      unsetenv("OMP_NUM_THREADS");
    else
      setenv("OMP_NUM_THREADS", before_.c_str(), 1);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  std::string before_;
};

/// "0-4,4-7 1 0" : the nodes and the joins of ranks with so many images.
std::string tree_of(const std::vector<std::int64_t>& counts) {
  std::vector<BatchPart> parts;
  std::int64_t batch = 0;
  for (const std::int64_t count : counts) {
    parts.push_back({nullptr, 0, count, batch});
    batch += count;
  }
  GradientTree tree;
  tree.plan_by_image(parts, batch);
  std::string text;
  for (std::size_t i = 0; i < tree.nodes().size(); ++i) {
    const GradientNode& node = tree.nodes()[i];
    text += concat(text.empty() ? "" : " ", node.rank, ":", node.begin, "-", node.end, "/",
                   tree.joins()[i]);
  }
  return text;
}

}  // namespace

TEST_CASE("ranks add up the largest nodes of the tree over the images that they fill") {
  CHECK(tree_of({8}) == "0:0-8/0");
  CHECK(tree_of({5}) == "0:0-5/0");
  CHECK(tree_of({4, 4}) == "0:0-4/0 1:4-8/1");
  CHECK(tree_of({2, 2, 2, 2}) == "0:0-2/0 1:2-4/1 2:4-6/0 3:6-8/2");
  CHECK(tree_of({3, 3, 2}) == "0:0-2/0 0:2-3/0 1:3-4/2 1:4-6/0 2:6-8/2");
  CHECK(tree_of({4, 3}) == "0:0-4/0 1:4-7/1");
  CHECK(tree_of({1, 0, 4}) == "0:0-1/0 2:1-2/1 2:2-4/1 2:4-5/1");
}

TEST_CASE("placement: sync comes to the same bytes on any devices and threads") {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.weight_decay = 1e-3F}), Optimizer(AdamW{})}) {
    const Placed whole = trained_in_steps(placed_options(1, optimizer));
    CHECK(whole.outcome.parameters.size() > 2 * kNormBlock);  // the norm has several blocks
    for (const int ranks : {2, 3, 4, 8, 11}) {
      CAPTURE(ranks);
      CHECK((trained_in_steps(placed_options(ranks, optimizer)) == whole));
    }
    for (const int threads : {1, 2, 16}) {
      CAPTURE(threads);
      const Threads limit(threads);
      CHECK((trained_in_steps(placed_options(1, optimizer)) == whole));
      CHECK((trained_in_steps(placed_options(3, optimizer)) == whole));
    }
  }
}

TEST_CASE("placement: activations in bf16 come to the same bytes on any devices and threads") {
  const auto narrow = [](int ranks, int accumulate = 1) {
    DataParallelOptions options = placed_options(ranks, Sgd{});
    options.precision = DType::kBFloat16;
    options.accumulate = accumulate;
    options.accumulated_statistics = MicroBatches::kTogether;
    return options;
  };
  const Placed wide = trained_in_steps(placed_options(1, Sgd{}));
  // Those of bf16 products compute where the processor has AVX-512.
  for (const char* convolutions :
       {"", "winograd8_4x4_bf16,onednn", "onednn_matmul_bf16,onednn_bf16,onednn"}) {
    const WithVariable forced("LOCKSTEP_CONVOLUTION", convolutions);
    CAPTURE(std::string(convolutions));
    const Placed whole = trained_in_steps(narrow(1));
    CHECK(DataParallel(narrow(3)).placement_obstacle().empty());
    for (const int ranks : {2, 3, 8, 11}) {
      CAPTURE(ranks);
      CHECK((trained_in_steps(narrow(ranks)) == whole));
    }
    CHECK((trained_in_steps(narrow(2, 4)) == whole));
    for (const int threads : {1, 16}) {
      CAPTURE(threads);
      const Threads limit(threads);
      CHECK((trained_in_steps(narrow(3)) == whole));
    }
    CHECK_FALSE(wide == whole);
    CHECK(distance(wide.outcome.parameters, whole.outcome.parameters) < 0.02);
  }
}

TEST_CASE("placement: a clipped gradient and frozen parameters") {
  for (const Optimizer& optimizer :
       {Optimizer(Sgd{.nesterov = true}), Optimizer(Adam{}), Optimizer(RMSprop{})}) {
    CAPTURE(optimizer_name(optimizer));
    const Placed whole = trained_in_steps(clipped_options(1, optimizer));
    for (const int ranks : {2, 3, 8, 11}) {
      CAPTURE(ranks);
      CHECK((trained_in_steps(clipped_options(ranks, optimizer)) == whole));
    }
  }
}

TEST_CASE("placement: norms of single images come to the same bytes on any devices") {
  for (const NormLayer& norm : {NormLayer(GroupNorm(2)), NormLayer(InstanceNorm()),
                                NormLayer(LayerNorm({.affine = false}))}) {
    CAPTURE(to_string(norm.options.mode));
    const auto options = [&](int ranks) {
      DataParallelOptions result = placed_options(ranks, Sgd{});
      result.norm = norm;
      return result;
    };
    const Placed whole = trained_in_steps(options(1));
    CHECK(whole.outcome.statistics.empty());
    CHECK(DataParallel(options(3)).placement_obstacle().empty());
    for (const int ranks : {3, 4, 11}) {
      CAPTURE(ranks);
      CHECK((trained_in_steps(options(ranks)) == whole));
    }
    CHECK_FALSE((trained_in_steps(placed_options(1, Sgd{})) == whole));
  }
}

namespace {

DataParallelOptions together(DataParallelOptions options, int accumulate) {
  options.accumulate = accumulate;
  options.accumulated_statistics = MicroBatches::kTogether;
  return options;
}

}  // namespace

TEST_CASE("placement: micro-batches together come to the bytes of whole batches on any devices") {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.weight_decay = 1e-3F}), Optimizer(AdamW{})}) {
    const Placed whole = trained_in_steps(placed_options(1, optimizer));
    for (const int ranks : {1, 2, 3}) {
      for (const int accumulate : {2, 3, 5, 8}) {
        CAPTURE(ranks);
        CAPTURE(accumulate);
        const DataParallelOptions options = together(placed_options(ranks, optimizer), accumulate);
        CHECK((trained_in_steps(options) == whole));
        CHECK(DataParallel(options).placement_obstacle().empty());
      }
      DataParallelOptions options = placed_options(ranks, optimizer);
      options.recompute = true;
      CHECK((trained_in_steps(options) == whole));
    }
  }
  const Placed clipped = trained_in_steps(clipped_options(1, Sgd{}));
  CHECK((trained_in_steps(together(clipped_options(2, Sgd{}), 4)) == clipped));
}

TEST_CASE("micro-batches together: the statistics of a device are those of its part") {
  for (const auto mode : {BatchNormMode::kLocal, BatchNormMode::kGhost, BatchNormMode::kRenorm}) {
    CAPTURE(to_string(mode));
    const auto outcome = [&](int accumulate) {
      DataParallel run(together(toy_options(2, mode, 7), accumulate));
      std::vector<double> losses = train(run, {7, 7, 3});
      CHECK(run.replica(0).store().batch_norms().front()->num_batches_tracked == 3);
      return outcome_of(run, std::move(losses));
    };
    const Outcome whole = outcome(1);
    for (const int accumulate : {2, 4}) CHECK((outcome(accumulate) == whole));
  }
}

TEST_CASE("micro-batches together take less memory") {
  const auto peak = [](int accumulate, bool recompute) {
    DataParallelOptions options = together(toy_options(1, BatchNormMode::kSync, 8), accumulate);
    options.model = unet({.width = 16, .depth = 4, .num_classes = kClasses});
    options.input = {8, 64, 64, 3};
    options.recompute = recompute;
    DataParallel run(options);
    const StepResult result = run.train_step(toy_batch(8, 0, {64, 64}), 0, 0.05F);
    return static_cast<double>(result.ranks[0].peak_memory_bytes);
  };
  const double whole = peak(1, false);
  CHECK(peak(1, true) < 0.8 * whole);
  CHECK(peak(8, false) < 0.7 * whole);
}

TEST_CASE("placement: every convolution of the U-Net") {
  const auto options = [](int ranks) {
    DataParallelOptions result = toy_options(ranks, BatchNormMode::kSync, 8);
    result.model = unet({.width = 16, .depth = 4, .num_classes = kClasses});
    return result;
  };
  const auto parameters_of = [&](int ranks) {
    DataParallel run(options(ranks));
    run.train_step(toy_batch(8, 0), 0, 0.05F);
    return parameters(run, 0);
  };
  const std::vector<float> whole = parameters_of(1);
  for (const int ranks : {2, 3, 8}) {
    CAPTURE(ranks);
    CHECK((parameters_of(ranks) == whole));
  }
}

TEST_CASE("placement: a batch per device, of any sizes") {
  DataParallel one(placed_options(1, Sgd{})), three(placed_options(3, Sgd{}));
  const Batch whole = toy_batch(6, 0);
  const auto pixels = std::size_t{kSize.height * kSize.width};
  std::vector<Batch> batches;
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 4}, {4, 6}}) {
    Batch part;
    part.size = whole.size;
    part.samples = {whole.samples.begin() + begin, whole.samples.begin() + end};
    part.images = {whole.images.begin() + static_cast<std::ptrdiff_t>(begin * pixels * 3),
                   whole.images.begin() + static_cast<std::ptrdiff_t>(end * pixels * 3)};
    part.labels = {whole.labels.begin() + static_cast<std::ptrdiff_t>(begin * pixels),
                   whole.labels.begin() + static_cast<std::ptrdiff_t>(end * pixels)};
    batches.push_back(part);
  }
  const double loss = one.train_step(whole, 0, 0.05F).loss;
  CHECK(three.train_step(batches, 0, 0.05F).loss == loss);
  CHECK(parameters(three, 2) == parameters(one, 0));
}

TEST_CASE("placement: training goes on with other devices to the same bytes") {
  const Optimizer sgd = Sgd{};
  const Placed whole = trained_in_steps(placed_options(4, sgd));
  DataParallel first(placed_options(8, sgd)), second(placed_options(3, sgd));
  train_steps(first, 0, 2);
  copy_parameters(first, second);
  second.set_optimizer_state(first.optimizer_state());
  for (std::size_t i = 0; i < 3; ++i) {
    for (int rank = 0; rank < 3; ++rank) {
      second.replica(rank).store().batch_norms()[i]->num_batches_tracked =
          first.replica(0).store().batch_norms()[i]->num_batches_tracked;
    }
  }
  const Placed rest = train_steps(second, 2, 5);
  CHECK(rest.outcome.parameters == whole.outcome.parameters);
  CHECK(rest.outcome.statistics == whole.outcome.statistics);
  CHECK(rest.outcome.optimizer == whole.outcome.optimizer);
  CHECK(rest.norms.back() == whole.norms.back());
}

}  // namespace lockstep::test
