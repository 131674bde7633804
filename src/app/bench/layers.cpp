// Where the time of a training step or of an evaluation goes: every layer, forward and backward
// apart, timed inside whole steps of one device. On a GPU the stream is waited for around each
// layer, so that its time holds the latency of its launches, which a step without an observer
// hides.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "app/bench/bench.h"
#include "compare/table.h"
#include "core/json.h"
#include "lockstep/core/check.h"
#include "step/replica.h"

namespace lockstep {
namespace {

constexpr int kLayersIters = 20;

using Clock = std::chrono::steady_clock;

/// Milliseconds of every layer and of what lies between the passes, per step.
class LayerTimer final : public LayerObserver {
 public:
  explicit LayerTimer(Network& network)
      : network_(network), forward_(network.layers().size()), backward_(network.layers().size()) {
    network_.observe(this);
  }
  ~LayerTimer() override { network_.observe(nullptr); }
  LayerTimer(const LayerTimer&) = delete;
  LayerTimer& operator=(const LayerTimer&) = delete;

  void begin(std::size_t, Direction direction) override {
    network_.backend().synchronize();
    start_ = Clock::now();
    Clock::time_point& first = direction == Direction::kForward ? forward_begin_ : backward_begin_;
    if (first == Clock::time_point{}) first = start_;
  }
  void end(std::size_t layer, Direction direction) override {
    network_.backend().synchronize();
    const Clock::time_point now = Clock::now();
    const bool forward = direction == Direction::kForward;
    std::vector<double>& times = (forward ? forward_ : backward_)[layer];
    if (times.size() == whole.size()) times.push_back(0);  // images may go through in several parts
    times.back() += milliseconds(start_, now);
    (forward ? forward_end_ : backward_end_) = now;
  }

  /// Times `step`, which does a forward pass and, in training, a backward pass.
  template <typename Step>
  void time(const Step& step) {
    forward_begin_ = backward_begin_ = {};
    const Clock::time_point begin = Clock::now();
    step();
    const Clock::time_point end = Clock::now();
    const bool trained = backward_begin_ != Clock::time_point{};
    before.push_back(milliseconds(begin, forward_begin_));
    if (trained) loss.push_back(milliseconds(forward_end_, backward_begin_));
    after.push_back(milliseconds(trained ? backward_end_ : forward_end_, end));
    whole_forward.push_back(milliseconds(forward_begin_, forward_end_));
    whole.push_back(milliseconds(begin, end));
  }

  std::span<const double> times(std::size_t layer, Direction direction) const {
    return (direction == Direction::kForward ? forward_ : backward_)[layer];
  }

  std::vector<double> whole, before, whole_forward, loss, after;  // [step]; loss: in training

 private:
  static double milliseconds(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double, std::milli>(end - begin).count();
  }

  Network& network_;
  std::vector<std::vector<double>> forward_, backward_;  // [layer][step]
  Clock::time_point start_, forward_begin_, forward_end_, backward_begin_, backward_end_;
};

/// One line: a layer's pass, or what else a step does.
struct Row {
  std::string name;
  std::string pass;  // forward, backward; empty beside the passes
  Percentiles ms;
  LayerWork work = {};  // nothing where no least is stated
};

struct Yardsticks {
  double copy = 0;             // bytes per second
  std::optional<double> peak;  // floating-point operations per second; none on a GPU
  std::optional<double> hertz;
};

struct LayersReport {
  std::vector<Row> rows;  // slowest first
  Percentiles step, forward;
  Yardsticks yardsticks;

  double sum() const {
    double ms = 0;
    for (const Row& row : rows) ms += row.ms.median;
    return ms;
  }
  double share_of_step(double ms) const { return ms / step.median; }
};

/// Per second; none where there is nothing to count.
std::optional<double> rate(double amount, const Row& row) {
  if (amount == 0 || row.ms.median == 0) return std::nullopt;
  return 1000 * amount / row.ms.median;
}

std::optional<double> scaled(std::optional<double> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

std::optional<double> share(std::optional<double> value, std::optional<double> most) {
  return value && most ? std::optional(*value / *most) : std::nullopt;
}

/// Reads the logits and the labels, writes the gradient.
LayerWork loss_work(const Network& network) {
  return {.bytes = element_bytes(network.output()) + element_bytes(network.output_grad()) +
                   static_cast<double>(network.output().shape.rows()) * sizeof(Label)};
}

std::vector<Row> rows_of(const LayerTimer& timer, const Network& network) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < network.layers().size(); ++i) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const std::span<const double> times = timer.times(i, direction);
      if (times.empty()) continue;
      rows.push_back({network.layers()[i]->name(), to_string(direction), percentiles(times),
                      network.work(i, direction)});
    }
  }
  if (timer.loss.empty()) {
    rows.push_back({"(image)", "", percentiles(timer.before)});
    rows.push_back({"(confusion matrix, loss)", "", percentiles(timer.after)});
  } else {
    rows.push_back({"(batch, zeroing of gradients)", "", percentiles(timer.before)});
    rows.push_back({"(loss and its gradient)", "", percentiles(timer.loss), loss_work(network)});
    rows.push_back({"(gradient exchange, update)", "", percentiles(timer.after)});
  }
  std::ranges::stable_sort(rows,
                           [](const Row& a, const Row& b) { return a.ms.median > b.ms.median; });
  return rows;
}

Json row_json(const LayersReport& report, const Row& row) {
  const std::optional<double> bytes = rate(row.work.bytes, row);
  const std::optional<double> flops = rate(row.work.flops, row);
  return {{"layer", row.name},
          {"pass", row.pass},
          {"ms", percentiles_json(row.ms)},
          {"share_of_step", report.share_of_step(row.ms.median)},
          {"bytes", row.work.bytes},
          {"gb_per_s", json_or_null(scaled(bytes, 1e-9))},
          {"share_of_copy", json_or_null(share(bytes, report.yardsticks.copy))},
          {"flops", row.work.flops},
          {"gflop_per_s", json_or_null(scaled(flops, 1e-9))},
          {"share_of_peak", json_or_null(share(flops, report.yardsticks.peak))}};
}

void print_json(const LayersReport& report, const BenchTraining& training,
                const BenchArguments& arguments) {
  Json rows = Json::array();
  for (const Row& row : report.rows) rows.push_back(row_json(report, row));
  const Json root = {{"bench", "layers"},
                     {"eval", arguments.eval},
                     {"config", arguments.config.string()},
                     {"bn_mode", to_string(training.config.bn.mode)},
                     {"device", to_string(training.devices.front())},
                     {"threads", threads_per_replica(1)},
                     {"global_batch", training.batch.count()},
                     {"size", {training.size.height, training.size.width}},
                     {"copy_gb_per_s", report.yardsticks.copy / 1e9},
                     {"peak_gflop_per_s", json_or_null(scaled(report.yardsticks.peak, 1e-9))},
                     {"clock_ghz", json_or_null(scaled(report.yardsticks.hertz, 1e-9))},
                     {"ms_per_step", percentiles_json(report.step)},
                     {"ms_forward", percentiles_json(report.forward)},
                     {"sum_ms", report.sum()},
                     {"sum_share_of_step", report.share_of_step(report.sum())},
                     {"rows", rows}};
  fmt::print("{}\n", json_text(root, 2));
}

std::string percent(std::optional<double> value) { return format_number(scaled(value, 100), 0); }

void print_table(const LayersReport& report, const BenchTraining& training, bool eval) {
  fmt::print("Layers of {}, {} with {} host thread(s), {} BatchNorm, batch {} of {}x{}\n",
             eval ? "an evaluation" : "a training step", to_string(training.devices.front()),
             threads_per_replica(1), to_string(training.config.bn.mode), training.batch.count(),
             training.size.height, training.size.width);
  fmt::print("copy: {:.1f} GB/s", report.yardsticks.copy / 1e9);
  if (report.yardsticks.peak) {
    fmt::print(", peak: {:.0f} GFLOP/s at {:.1f} GHz", *report.yardsticks.peak / 1e9,
               *report.yardsticks.hertz / 1e9);
  }
  fmt::print("\n\n");
  Table table{
      {"layer", "pass", "ms", "% of step", "MB", "GB/s", "% of copy", "GFLOP/s", "% of peak"}, {}};
  const auto positive = [](double value) {
    return value > 0 ? std::optional(value) : std::nullopt;
  };
  for (const Row& row : report.rows) {
    const std::optional<double> bytes = rate(row.work.bytes, row);
    const std::optional<double> flops = rate(row.work.flops, row);
    table.rows.push_back(
        {row.name, row.pass, format_number(row.ms.median, 3),
         format_number(100 * report.share_of_step(row.ms.median), 1),
         format_number(scaled(positive(row.work.bytes), 1e-6), 1),
         format_number(scaled(bytes, 1e-9), 1), percent(share(bytes, report.yardsticks.copy)),
         format_number(scaled(flops, 1e-9), 0), percent(share(flops, report.yardsticks.peak))});
  }
  table.rows.push_back({"sum", "", format_number(report.sum(), 3),
                        format_number(100 * report.share_of_step(report.sum()), 1), "", "", "", "",
                        ""});
  table.rows.push_back(
      {"step", "", format_number(report.step.median, 3), "100.0", "", "", "", "", ""});
  fmt::print("{}", to_markdown(table));
}

Yardsticks measure_machine(BenchTraining& training) {
  Yardsticks result;
  training.replicas->for_each_replica([&](Replica& replica) {  // the backend is its thread's
    result.copy = copy_bandwidth(replica.backend());
  });
  if (training.devices.front().kind == DeviceKind::kCpu) {
    result.peak = peak_flops(threads_per_replica(1));
    result.hertz = clock_hertz(threads_per_replica(1));
  }
  return result;
}

void check_arguments(const BenchTraining& training) {
  if (training.devices.size() != 1) {
    throw ConfigError(concat("bench layers looks at one device, got ", training.devices.size(),
                             "; use -d cpu:1 or -d cuda:0"));
  }
  if (training.config.run.cuda_graph) {
    throw ConfigError(
        "bench layers times layers as they are issued, and the replay of a CUDA graph issues none; "
        "use -s run.cuda_graph=false");
  }
}

/// What is timed.
void pass(BenchTraining& training, bool eval, std::int64_t index) {
  if (eval) {
    training.evaluate();
  } else {
    training.step(index);
  }
}

}  // namespace

int bench_layers(const BenchArguments& arguments) {
  BenchTraining training = bench_training(arguments);
  check_arguments(training);
  LayersReport report;
  report.yardsticks = measure_machine(training);
  for (int i = 0; i < kWarmupSteps; ++i) pass(training, arguments.eval, i);
  const Replica& replica = training.replicas->replica(0);
  Network& network =
      arguments.eval ? training_replica(replica).validation().network() : replica.network();
  LayerTimer timer(network);
  const int iters = arguments.iters > 0 ? arguments.iters : kLayersIters;
  for (int i = 0; i < iters; ++i) {
    timer.time([&] { pass(training, arguments.eval, kWarmupSteps + i); });
  }
  report.rows = rows_of(timer, network);
  report.step = percentiles(timer.whole);
  report.forward = percentiles(timer.whole_forward);
  if (arguments.common.json) {
    print_json(report, training, arguments);
  } else {
    print_table(report, training, arguments.eval);
  }
  return kExitDone;
}

}  // namespace lockstep
