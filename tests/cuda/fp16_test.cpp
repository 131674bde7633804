// fp16 with its loss scale on the fake runtime: nothing of it is done by the host, so that graphs,
// steps begun ahead and resumed runs have the same bits.

#include <doctest/doctest.h>

#include <cmath>
#include <tuple>

#include "cuda/fake_runtime.h"
#include "cuda/tiny_run.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kFp16Steps = 4;

DataParallelOptions fp16_options(int gpus) {
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  for (int rank = 0; rank < 3; ++rank) {
    options.devices[rank] = {DeviceKind::kCuda, rank % gpus, rank / gpus};
  }
  options.precision = DType::kFloat16;
  options.loss_scale = LossScaleOptions{.initial = 0x1p18F, .growth_interval = 2};
  return options;
}

struct Fp16Training {
  std::vector<double> losses, norms;           // norms: 0 of skipped steps
  std::vector<LossScaleState> scales;          // [step]
  std::vector<std::vector<float>> parameters;  // [rank]

  bool operator==(const Fp16Training&) const = default;
};

Fp16Training trained_in_fp16(const DataParallelOptions& options, bool ahead) {
  const auto run = make_toy(options);
  Fp16Training result;
  for (std::int64_t step = 0; step < kFp16Steps; ++step) {
    if (step == 0 || !ahead) run->begin_step(toy_batch(5, step), step, 0.02F);
    if (ahead && step + 1 < kFp16Steps) run->begin_step(toy_batch(5, step + 1), step + 1, 0.02F);
    const StepResult done = run->finish_step();
    CHECK(done.skipped == std::isnan(done.grad_norm));
    result.losses.push_back(done.loss);
    result.norms.push_back(done.skipped ? 0 : done.grad_norm);
    result.scales.push_back(*done.loss_scale);
  }
  for (int rank = 0; rank < run->size(); ++rank) {
    result.parameters.push_back(parameters(*run, rank));
    CHECK(result.parameters.back() == result.parameters.front());
  }
  CHECK(run->loss_scale() == result.scales.back());
  return result;
}

TEST_CASE("steps that overflow fp16 are skipped alike by issued, replayed and early steps") {
  // One GPU, or three that do not reach each other's memory.
  for (const int gpus : {1, 3}) {
    CAPTURE(gpus);
    fake_runtime::use({.devices = gpus, .peer_access = false});
    DataParallelOptions options = fp16_options(gpus);
    const Fp16Training issued = trained_in_fp16(options, false);
    CHECK(issued.scales.back().skipped > 0);
    CHECK(issued.scales.back().skipped < kFp16Steps);
    CHECK(trained_in_fp16(options, true) == issued);
    if (gpus > 1) continue;  // gradients go by all_reduce there, which cannot be recorded
    options.cuda_graph = true;
    CHECK(trained_in_fp16(options, true) == issued);
  }
}

TEST_CASE("a GPU without bf16 is told from one with it, and shown fp16") {
  DataParallelOptions options = fp16_options(1);
  fake_runtime::use({.devices = 1, .compute_capability = 7});
  CHECK(make_toy(options)->train_step(toy_batch(5, 0), 0, 0.02F).loss > 0);
  options.precision = DType::kBFloat16;
  CHECK_THROWS_WITH_AS(make_toy(options),
                       doctest::Contains("no bf16; use run.precision = \"fp16\""), ConfigError);
  fake_runtime::use({.devices = 1, .compute_capability = 8});
  make_toy(options);
}

const std::vector<std::string> kFp16{"run.precision=fp16", "run.loss_scale=4194304",
                                     "run.log_every=1", "run.checkpoint_every=2"};

TEST_CASE("a run in fp16 says what it skipped, and resumes with its scale to the bit") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "whole", kFp16));
  TrainRequest cut = request(folder, "cut", kFp16);
  cut.fault = "throw:rank=1,step=5";
  CHECK_THROWS_AS(train(cut), ReplicaError);
  cut.fault.clear();
  cut.resume = "auto";
  train(cut);
  const RunFolder whole{folder.path() / "whole"}, resumed{folder.path() / "cut"};
  CHECK(read_text(whole.scalars()) == read_text(resumed.scalars()));
  for (const char* name : {"last", "iter_6"}) {
    CHECK(read_text(state_path(whole.checkpoint(name))) ==
          read_text(state_path(resumed.checkpoint(name))));
    CHECK(read_text(whole.checkpoint(name)) == read_text(resumed.checkpoint(name)));
  }

  const auto lines = lines_of(whole.scalars());
  CHECK(lines.front().at("loss_scale") == 2097152);
  CHECK(lines.front().at("skipped") == 1);
  CHECK(lines.front().at("grad_norm").is_null());
  CHECK(read_text(whole.log()).find("grad_norm: -  loss: ") != std::string::npos);
  CHECK(read_text(whole.log()).find("  loss_scale: 2097152  skipped: 1") != std::string::npos);
  const auto scale = load_checkpoint(whole.checkpoint("last")).state.loss_scale;
  REQUIRE(scale.has_value());
  CHECK(scale->skipped + scale->good_steps == 6);
  CHECK(scale->good_steps > 0);
}

TEST_CASE("runs without fp16 have no loss scale, in no file") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "a", {"run.max_iters=1"}));
  const RunFolder run{folder.path() / "a"};
  for (const auto& path :
       {run.scalars(), run.log(), run.config(), state_path(run.checkpoint("last"))}) {
    CHECK(read_text(path).find("loss_scale") == std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::test
