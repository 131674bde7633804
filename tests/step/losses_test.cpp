// Losses in training: of the global batch, whatever the placement; several at one output; weights
// of samples; a user's own.

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "step/world_training.h"
#include "support/count_allocations.h"

namespace lockstep::test {
namespace {

/// A user's formula: log(cosh(d)).
struct LogCosh {
  LossElement operator()(float output, float target) const {
    const float d = output - target;
    return {std::log(std::cosh(static_cast<double>(d))), std::tanh(d)};
  }
};

/// The same with a weight per channel.
struct ByChannel {
  LossElement operator()(float output, float target, std::int64_t channel) const {
    const float d = output - target, weight = channel == 0 ? 1.0F : 3.0F;
    return {static_cast<double>(weight * d) * static_cast<double>(d), 2 * weight * d};
  }
};

/// A user's node: the mean of the outputs, times their number on all ranks over itself.
class MeanNode final : public LossNode {
 public:
  explicit MeanNode(const LossSite& site) : LossNode(site, 1, {}) {}

  void compute(const LossPass& pass) override {
    const double share = 1 / pass.normalizer.get();
    const std::int64_t image = pass.output.shape.rows_per_sample() * classes();
    for (std::int64_t n = 0; n < pass.output.shape.batch(); ++n) {
      double sum = 0;
      for (std::int64_t i = n * image; i < (n + 1) * image; ++i) {
        sum += static_cast<double>(pass.output.floats()[i]);
        if (pass.grad_output) pass.grad_output.floats()[i] = static_cast<float>(share);
      }
      *pass.loss += share * sum;
      if (pass.image_losses != nullptr) pass.image_losses[n] += share * sum;
    }
  }
};

struct MeanLoss {
  static constexpr const char* kName = "mean";
  float weight = 1;
  std::unique_ptr<LossNode> make_node(const LossSite& site) const {
    return std::make_unique<MeanNode>(site);
  }
};

std::vector<float> values_of(std::size_t count, std::uint64_t item, bool shares) {
  Rng rng(3, RngPurpose::kTest, item);
  std::vector<float> values(count);
  for (float& value : values) value = shares ? rng.uniform() : rng.normal();
  return values;
}

/// Labels, and shares as targets of the same output.
Batch batch_of(std::int64_t count, std::int64_t step, bool weights = false) {
  Batch batch = toy_batch(count, step);
  batch.targets["out"] =
      values_of(static_cast<std::size_t>(count) * 16 * 16 * kClasses, 100 + step, true);
  if (weights) batch.sample_weights = values_of(static_cast<std::size_t>(count), 200 + step, true);
  return batch;
}

using Losses = std::vector<NamedLoss>;

DataParallelOptions options_of(const Losses& losses, int ranks, bool weights = false) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync, 7);
  options.losses = losses;
  options.sample_weights = weights;
  return options;
}

Outcome trained(DataParallel& run) {
  const DataParallelOptions& options = run.options();
  std::vector<double> losses;
  for (const std::int64_t count : {7, 5, 7, 1}) {
    const auto step = static_cast<std::int64_t>(losses.size());
    losses.push_back(
        run.train_step(batch_of(count, step, options.sample_weights), step, 0.05F).loss);
  }
  return outcome_of(run, losses);
}

Outcome train_by(const DataParallelOptions& options) {
  DataParallel run(options);
  return trained(run);
}

Loss ohem() { return OhemCrossEntropyLoss{.thresh = 0.3F, .min_kept = 40}; }

std::vector<std::pair<std::string, Losses>> all_losses() {
  const std::vector<float> weights{0.5F, 2, 1};
  return {
      {"label smoothing",
       {{"out", CrossEntropyLoss{.class_weight = weights, .label_smoothing = 0.2F}}}},
      {"focal", {{"out", FocalLoss{.gamma = 2, .alpha = weights}}}},
      {"ohem", {{"out", ohem()}}},
      {"dice", {{"out", DiceLoss{}}}},
      {"dice by image", {{"out", DiceLoss{.per_image = true}}}},
      {"l1", {{"out", L1Loss{}}}},
      {"huber", {{"out", HuberLoss{.delta = 0.3F}}}},
      {"bce", {{"out", BCEWithLogitsLoss{.pos_weight = weights}}}},
      {"a formula of one's own", {{"out", ElementwiseLoss<LogCosh>{}}}},
      {"a node of one's own", {{"out", MeanLoss{}}}},
      {"several at one output",
       {{"out", CrossEntropyLoss{}}, {"out", DiceLoss{.weight = 0.5F}}, {"out", L1Loss{}}}},
  };
}

}  // namespace

TEST_CASE("losses: placement does not show in a bit, of any of them") {
  for (const auto& [name, losses] : all_losses()) {
    for (const bool weights : {false, true}) {
      if (weights && name == "a node of one's own") continue;  // it has none
      CAPTURE(name);
      CAPTURE(weights);
      const Outcome one = train_by(options_of(losses, 1, weights));
      CHECK(one.losses[2] != one.losses[0]);
      CHECK(std::isfinite(one.losses[3]));
      for (const int ranks : {3, 4}) {
        CAPTURE(ranks);
        CHECK(train_by(options_of(losses, ranks, weights)) == one);
      }
    }
  }
}

TEST_CASE("losses: over processes they are those of one") {
  for (const Loss& loss : {Loss(DiceLoss{}), ohem()}) {
    CAPTURE(loss.name());
    for (const bool weights : {false, true}) {
      const ProcessOptions options = [&](int devices, int) {
        return options_of({{"out", loss}}, devices, weights);
      };
      const auto in_parts = [](DataParallel& run) {
        const Outcome outcome = trained(run);
        return std::pair(outcome.parameters, outcome.losses);
      };
      using Result = std::pair<std::vector<float>, std::vector<double>>;
      DataParallel whole(options(3, 0));
      const Result expected = in_parts(whole);
      CHECK((one_of_all<Result>({2, 1}, options, in_parts) == expected));
    }
  }
}

// Layers of our own: oneDNN makes a list of arguments at each call.
TEST_CASE("losses: what they exchange does not count as BatchNorm's") {
  for (const Loss& loss : {Loss(DiceLoss{}), ohem()}) {
    DataParallelOptions options = options_of({{"out", loss}}, 2);
    options.norm = BatchNorm2d();
    DataParallel run(options);
    trained(run);
    CHECK(run.sync_group().callbacks(Direction::kForward) == 0);
    CHECK(run.sync_group().callbacks(Direction::kOther) > 0);
  }
}

TEST_CASE("losses: a step allocates nothing") {
  for (const auto& [name, losses] : all_losses()) {
    CAPTURE(name);
    DataParallelOptions options = options_of(losses, 1, true);
    options.model = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
      return {{"out", norm(net, norm(net, x, "a", {.relu = true}), "b")}};
    };
    options.communicator.stall_timeout = std::chrono::milliseconds(0);  // its reports do
    DataParallel run(options);
    const std::vector<Batch> batches = {batch_of(7, 0, true), batch_of(5, 1, true)};
    const auto steps = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t step = begin; step < end; ++step) {
        run.train_step(batches[static_cast<std::size_t>(step) % batches.size()], step, 0.05F);
      }
    };
    steps(0, 4);
    const long before = allocation_count();
    steps(4, 20);
    CHECK(allocation_count() == before);
  }
}

TEST_CASE("losses: samples of weight 1 are samples without weights") {
  for (const auto& [name, losses] : all_losses()) {
    CAPTURE(name);
    const auto loss_of = [&, &all = losses](bool weights) {
      DataParallel run(options_of(all, 2, weights));
      Batch batch = batch_of(5, 0);
      if (weights) batch.sample_weights.assign(5, 1.0F);
      return run.train_step(batch, 0, 0.1F).loss;
    };
    CHECK(loss_of(true) == doctest::Approx(loss_of(false)).epsilon(1e-6));
  }
}

TEST_CASE("losses: a sample of weight 0 is not there, one of weight 2 is there twice") {
  for (const auto& [name, losses] : all_losses()) {
    if (name == "a node of one's own") continue;
    if (name == "ohem") continue;  // which pixels are hard is a question of all samples alike
    CAPTURE(name);
    const Batch whole = batch_of(3, 0);
    const auto pick = [&](const std::vector<std::size_t>& samples) {
      Batch batch;
      const auto take = [&](const auto& from, auto& to, std::size_t each, std::size_t n) {
        to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(n * each),
                  from.begin() + static_cast<std::ptrdiff_t>((n + 1) * each));
      };
      for (const std::size_t n : samples) {
        batch.samples.push_back(static_cast<std::int64_t>(batch.samples.size()));
        take(whole.images, batch.images, whole.images.size() / 3, n);
        take(whole.labels, batch.labels, whole.labels.size() / 3, n);
        take(whole.targets.at("out"), batch.targets["out"], whole.targets.at("out").size() / 3, n);
      }
      batch.size = whole.size;
      return batch;
    };
    Batch weighted = pick({0, 1, 2});
    weighted.sample_weights = {2, 0, 1};
    const auto step = [&, &all = losses](const Batch& batch, bool weights) {
      DataParallelOptions options = options_of(all, 2, weights);
      options.norm = FrozenBatchNorm();  // of which samples have no part
      DataParallel run(options);
      const double loss = run.train_step(batch, 0, 0.1F).loss;
      return outcome_of(run, {loss});
    };
    check_close(step(weighted, true), step(pick({0, 0, 2}), false));
  }
}

TEST_CASE("losses at one output: their gradients add up as losses of their own") {
  const Losses first{{"out", CrossEntropyLoss{.weight = 0.75F}}},
      second{{"out", DiceLoss{.weight = 0.5F}}};
  const auto gradient = [](const Losses& losses) {
    DataParallelOptions options = options_of(losses, 2);
    options.optimizer = Sgd{.momentum = 0.5F, .weight_decay = 0};
    DataParallel run(options);
    const StepResult result = run.train_step(batch_of(5, 0), 0, 0.0F);
    CHECK(result.loss == result.losses[0] + result.losses[1]);
    return run.optimizer_state().slots.at("momentum_buffer");
  };
  Losses both = first;
  both.push_back(second[0]);
  std::vector<float> sum = gradient(first);
  const std::vector<float> more = gradient(second);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  CHECK(distance(gradient(both), sum) < 1e-6);
  CHECK(distance(more, std::vector<float>(more.size())) > 1e-3);
}

TEST_CASE("losses by micro-batches: those of single positions are the whole batch's") {
  for (const auto& [name, losses] : all_losses()) {
    const bool of_sets = name == "dice" || name == "ohem" || name == "several at one output";
    if (of_sets) continue;
    CAPTURE(name);
    const auto loss_of = [&, &all = losses](int accumulate) {
      DataParallelOptions options = options_of(all, 2);
      options.accumulate = accumulate;
      options.norm = FrozenBatchNorm();
      DataParallel run(options);
      return run.train_step(batch_of(7, 0), 0, 0.1F).loss;
    };
    CHECK(loss_of(3) == doctest::Approx(loss_of(1)).epsilon(1e-6));
  }
}

TEST_CASE("losses by micro-batches: dice and ohem are averaged by their parts of the batch") {
  for (const Loss& loss : {Loss(DiceLoss{}), ohem()}) {
    CAPTURE(loss.name());
    DataParallelOptions options = options_of({{"out", loss}}, 2);
    options.accumulate = 3;
    DataParallel run(options);
    const StepResult result = run.train_step(batch_of(7, 0), 0, 0.1F);
    CHECK(result.loss > 0);
    CHECK(std::isfinite(result.grad_norm));
  }
}

TEST_CASE("ohem keeps at least so many pixels of each image") {
  // Nothing is below a probability of 0, so that as many are kept as must be.
  const auto loss_of = [](const Loss& loss, int ranks) {
    DataParallel run(options_of({{"out", loss}}, ranks));
    return run.train_step(batch_of(2, 0), 0, 0.0F).loss;
  };
  const auto kept = [&](std::int64_t count) {
    return loss_of(OhemCrossEntropyLoss{.thresh = 0, .min_kept = count}, 2);
  };
  // The fewer the harder, down to the hardest.
  CHECK(kept(1) > kept(20));
  CHECK(kept(20) > kept(60));
  // 2 x 128 of the 256 labels, all of which are of the first image: all but the easiest.
  const double all = loss_of(CrossEntropyLoss{}, 2);
  CHECK(kept(60) > all);
  CHECK(kept(128) == doctest::Approx(all).epsilon(0.02));
}

TEST_CASE("an evaluation by any loss does not depend on the devices") {
  for (const auto& [name, losses] : all_losses()) {
    CAPTURE(name);
    const auto evaluate = [&, &all = losses](int ranks) {
      DataParallel run(options_of(all, ranks));
      return run.evaluate(4, [](std::int64_t i) { return batch_of(1 + i % 2, i); });
    };
    const auto one = evaluate(1), three = evaluate(3);
    CHECK(one.loss == three.loss);
    CHECK(one.confusion == three.confusion);
    CHECK(one.loss != 0);
  }
}

TEST_CASE("losses that do not fit are errors that say what to do") {
  const auto error_of = [](const Loss& loss) {
    return [loss] { DataParallel run(options_of({{"out", loss}}, 1)); };
  };
  CHECK_THROWS_WITH_AS(error_of(FocalLoss{.gamma = -1})(),
                       doctest::Contains("the loss focal takes a gamma from 0, got -1"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(error_of(HuberLoss{.delta = 0})(),
                       doctest::Contains("the loss huber takes a delta above 0, got 0"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(error_of(CrossEntropyLoss{.label_smoothing = 1.5F})(),
                       doctest::Contains("a label_smoothing from 0 to 1, got 1.5"), ConfigError);
  CHECK_THROWS_WITH_AS(error_of(FocalLoss{.alpha = {1, 2}})(),
                       doctest::Contains("loss.alpha has 2 values for 3 classes"), ConfigError);
  CHECK_THROWS_WITH_AS(error_of(DiceLoss{.weight = -1})(),
                       doctest::Contains("weight of the loss dice must be positive"), ConfigError);
  DataParallel weighted(options_of({{"out", L1Loss{}}}, 1, true));
  CHECK_THROWS_WITH_AS(weighted.train_step(batch_of(3, 0), 0, 0.1F),
                       doctest::Contains("sample_weights do not fit its count: expected 3, got 0"),
                       Error);
  DataParallel plain(options_of({{"out", L1Loss{}}}, 1));
  CHECK_THROWS_WITH_AS(plain.train_step(batch_of(3, 0, true), 0, 0.1F),
                       doctest::Contains("the option sample_weights = true"), Error);
}

TEST_CASE("a formula of one's own may know the channel") {
  DataParallel run(options_of({{"out", ElementwiseLoss<ByChannel>{}}}, 2));
  DataParallel same(options_of({{"out", MeanSquaredErrorLoss{}}}, 2));
  const double by_channel = run.train_step(batch_of(5, 0), 0, 0.1F).loss;
  const double plain = same.train_step(batch_of(5, 0), 0, 0.1F).loss;
  CHECK(by_channel > plain);
  CHECK(by_channel < 3 * plain);
}

}  // namespace lockstep::test
