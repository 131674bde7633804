#include "run/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "config/config.h"
#include "core/words.h"
#include "run/disparity.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

std::string share(double part, double whole) {
  return fmt::format("{:6.1f} ms {:5.1f} %", part * 1e3, whole > 0 ? 100 * part / whole : 0.0);
}

std::string format_times(const TrainSummary& summary) {
  const MeanTimes& times = summary.times;
  if (!times.known()) return "";
  const double parts = times.data + times.compute + times.batch_norm_wait + times.gradient_exchange;
  std::string text =
      fmt::format("step {:.1f} ms (median {:.1f} ms), {:.1f} images/s\n", times.step * 1e3,
                  times.median_step * 1e3, summary.images_per_second);
  constexpr double kHeldUp = 0.1;  // of a step
  text += fmt::format("  data          {}{}\n", share(times.data, times.step),
                      times.data > kHeldUp * times.step
                          ? "  (the data held the training up: more data.workers or data.cache_mb "
                            "help, or smaller files)"
                          : "");
  text += fmt::format("  compute       {}\n", share(times.compute, times.step));
  // What a device waits for then is a core, and no cost of synchronization.
  text += fmt::format("  bn wait       {}{}\n", share(times.batch_norm_wait, times.step),
                      summary.shares_cores ? "  (mostly for a core: devices share them)" : "");
  text += fmt::format("  exchange      {}\n", share(times.gradient_exchange, times.step));
  text += fmt::format("  other         {}\n", share(std::max(0.0, times.step - parts), times.step));
  return text;
}

std::string milliseconds(double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds); }

std::string megabytes(std::size_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 0x1p20);
}

// On GPUs streams do the waiting, which takes no time of a rank's thread.
bool threads_wait(const RankReport& rank) {
  return rank.times.batch_norm_wait > 0 || rank.times.gradient_exchange > 0;
}

template <typename Value>
bool all_equal(std::span<const RankReport> ranks, Value RankReport::*value) {
  return std::ranges::all_of(
      ranks, [&](const RankReport& rank) { return rank.*value == ranks.front().*value; });
}

bool is_plain(char c) {
  constexpr std::string_view kPlain = "_-./:,=+@%";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos;
}

struct Column {
  const char* header;
  const std::vector<std::optional<double>>* values;  // [class], percent
};

std::string class_table(const std::vector<std::string>& classes,
                        const std::vector<Column>& columns) {
  std::size_t width = 5;
  for (const std::string& name : classes) width = std::max(width, name.size());
  std::string rule = fmt::format("+-{:-<{}}-+", "", width);
  std::string text = fmt::format("| {:<{}} |", "class", width);
  for (const Column& column : columns) {
    rule += "--------+";
    text += fmt::format(" {:>6} |", column.header);
  }
  rule += "\n";
  text = rule + text + "\n" + rule;
  for (std::size_t c = 0; c < columns.front().values->size(); ++c) {
    text += fmt::format("| {:<{}} |", c < classes.size() ? classes[c] : std::to_string(c), width);
    for (const Column& column : columns) {
      text += fmt::format(" {:>6} |", format_percent((*column.values)[c]));
    }
    text += "\n";
  }
  return text + rule;
}

// What the figures before it are of.
std::string format_basis(const Evaluation& evaluation) {
  const std::string loss =
      evaluation.loss ? fmt::format("  loss {:.4f}", *evaluation.loss) : std::string();
  const auto& mismatch = evaluation.mismatch;
  return loss +
         fmt::format("  ({}{}, eval_stats {})\n", count_of(evaluation.images, "image"),
                     mismatch ? " in windows" : "", to_string(evaluation.eval_stats)) +
         (mismatch ? format_mismatch(*mismatch) + "\n" : "");
}

// A thousand classes are for a file, not for a terminal.
std::string format_classification(const Evaluation& evaluation,
                                  const std::vector<std::string>& classes) {
  constexpr std::size_t kMostRows = 40;
  const ConfusionMetrics& metrics = evaluation.metrics;
  std::string text;
  if (metrics.acc.size() <= kMostRows) {
    text = class_table(classes, {{"Acc", &metrics.acc}});
  }
  return text +
         fmt::format("top1 {} %  top5 {} %  mAcc {} %", format_percent(metrics.a_acc),
                     format_percent(evaluation.top5), format_percent(metrics.m_acc)) +
         format_basis(evaluation);
}

// Whether the replicas are equal, to the bit.
std::string compare_replicas(std::span<const RankReport> ranks) {
  const auto verdict = [](bool equal) { return equal ? "are equal" : "differ"; };
  return fmt::format("  the ranks' weights {}, their running statistics {}\n",
                     verdict(all_equal(ranks, &RankReport::weights_hash)),
                     verdict(all_equal(ranks, &RankReport::statistics_hash)));
}

}  // namespace

std::string shell_word(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";  // a quote ends the quotes, stands escaped, and begins them again
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string format_ranks(std::span<const RankReport> ranks) {
  const bool waits = std::ranges::any_of(ranks, threads_wait);
  std::string text = fmt::format("  {:>4}  {:<7} {:>12}", "rank", "device", "compute");
  if (waits) text += fmt::format(" {:>12} {:>12}", "bn wait", "exchange");
  text += fmt::format(" {:>12} {:>12}\n", "memory", "at most");
  for (const RankReport& rank : ranks) {
    const StepTimes& times = rank.times;
    text +=
        fmt::format("  {:>4}  {:<7} {:>12}", rank.rank, rank.device, milliseconds(times.compute));
    if (waits) {
      text += fmt::format(" {:>12} {:>12}", milliseconds(times.batch_norm_wait),
                          milliseconds(times.gradient_exchange));
    }
    text += fmt::format(" {:>12} {:>12}\n", megabytes(rank.memory_bytes),
                        megabytes(rank.peak_memory_bytes));
  }
  if (!ranks.empty() && !ranks.front().weights_hash.empty()) text += compare_replicas(ranks);
  return text;
}

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const std::int64_t days = total / 86400;
  return fmt::format("{}{}:{:02}:{:02}", days > 0 ? fmt::format("{} d ", days) : "",
                     total / 3600 % 24, total / 60 % 60, total % 60);
}

std::string format_checkpoint(const std::filesystem::path& checkpoint, std::int64_t iteration,
                              const std::string& devices, bool by_default) {
  return fmt::format("{}{}, on {}{}", checkpoint.string(),
                     iteration >= 0 ? fmt::format(", step {}", iteration) : "", devices,
                     by_default ? " (the default; choose with -d)" : "");
}

std::string format_percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}", *value) : "-";
}

std::string format_mismatch(const TileMismatch& mismatch) {
  if (mismatch.pixels == 0) return "tile mismatch: no two windows overlap";
  return fmt::format(
      "tile mismatch {:.4f}: where windows overlap, their probabilities differ by so much, and "
      "{:.2f} "
      "% of the pixels have another class",
      mismatch.mean_difference(), 100 * mismatch.share_of_other_class());
}

std::string format_step(const StepReport& report) {
  const auto width = std::to_string(report.max_iters).size();
  const std::string norm =
      std::isnan(report.grad_norm) ? "-" : fmt::format("{:.4f}", report.grad_norm);
  std::string text = fmt::format(
      "Iter(train) [{:>{}}/{}]  lr: {:.4e}  eta: {}  time: {:.4f}  data_time: {:.4f}  compute: "
      "{:.4f}  "
      "bn_wait: {:.4f}  exchange: {:.4f}  memory: {:.0f}  grad_norm: {}  loss: {:.4f}",
      report.iteration, width, report.max_iters, report.lr, format_duration(report.eta),
      report.time, report.data_time, report.compute, report.batch_norm_wait, report.exchange,
      report.memory, norm, report.loss);
  if (report.loss_scale) {
    text += fmt::format("  loss_scale: {}  skipped: {}", report.loss_scale->scale,
                        report.loss_scale->skipped);
  }
  return text;
}

std::string format_validation(const Evaluation& evaluation) {
  const auto value = [](const std::optional<double>& number) {
    return number ? fmt::format("{:.4f}", *number) : std::string("-");
  };
  const ConfusionMetrics& metrics = evaluation.metrics;
  const std::string figures =
      evaluation.task == Task::kSegmentation
          ? fmt::format("aAcc: {}  mIoU: {}", value(metrics.a_acc), value(metrics.m_iou))
          : fmt::format("top1: {}  top5: {}", value(metrics.a_acc), value(evaluation.top5));
  return fmt::format(
      "Iter({}) [{}/{}]  {}  mAcc: {}  loss: {}  eval_stats: {}  time: {:.4f}", mode_of(evaluation),
      evaluation.images, evaluation.images, figures, value(metrics.m_acc), value(evaluation.loss),
      to_string(evaluation.eval_stats),
      evaluation.seconds / static_cast<double>(std::max<std::int64_t>(1, evaluation.images)));
}

std::optional<std::string> loss_warning(const Evaluation& evaluation) {
  if (!evaluation.loss || std::isfinite(*evaluation.loss)) return std::nullopt;
  return fmt::format(
      "the validation loss is {}: the network's outputs are not finite, and its scores say nothing",
      std::isnan(*evaluation.loss) ? "nan" : "infinite");
}

std::string format_evaluation(const Evaluation& evaluation,
                              const std::vector<std::string>& classes) {
  const ConfusionMetrics& metrics = evaluation.metrics;
  if (evaluation.task == Task::kClassification) return format_classification(evaluation, classes);
  std::string text = class_table(classes, {{"IoU", &metrics.iou}, {"Acc", &metrics.acc}});
  text += fmt::format("mIoU {} %  mAcc {} %  aAcc {} %  mIoU_present {} %",
                      format_percent(metrics.m_iou), format_percent(metrics.m_acc),
                      format_percent(metrics.a_acc), format_percent(metrics.m_iou_present));
  return text + format_basis(evaluation);
}

std::string format_summary(const TrainSummary& summary, const std::string& program) {
  std::string text = format_evaluation(summary.evaluation, summary.classes);
  for (const Evaluation& other : summary.other_stats) {
    text += fmt::format("with eval_stats {}: {} {} %\n", to_string(other.eval_stats),
                        score_name(other.task), format_percent(score(other)));
  }
  if (const auto scores = compare_statistics({&summary, 1})) {
    text += explain(*scores) + "\n";
  } else if (const auto own = explain_own(summary)) {
    text += *own + "\n";
  }
  text += fmt::format("best {} {} % after step {}; train loss {:.4f}; peak memory {:.0f} MB\n",
                      score_name(summary.evaluation.task), format_percent(summary.best_score),
                      summary.best_iter, summary.train_loss, summary.peak_memory_mb);
  text += format_times(summary);
  if (summary.ranks.size() > 1) text += format_ranks(summary.ranks);
  text += fmt::format("everything is in {}\nnext:\n", summary.run.string());
  const std::string command = shell_word(program);
  text += fmt::format("  {} eval {}\n", command, shell_word(summary.run.string()));
  const std::string config = shell_word(RunFolder{summary.run}.config().string());
  if (summary.ranks.size() < 2) {  // on one device local and sync are the same
    const bool cpu = summary.devices.find("cuda") == std::string::npos;
    text += fmt::format("  {} compare {} -d {}\n", command, config, cpu ? "cpu:4" : "cuda:0x4");
  } else {
    text += fmt::format("  {} train {} -d {} -s bn.mode={}\n", command, config, summary.devices,
                        summary.bn_mode == "sync" ? "local" : "sync");
  }
  return text;
}

}  // namespace lockstep
