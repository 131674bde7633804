#include "run/disparity.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {
namespace {

// Where the run itself evaluates by no running ones, device 0's statistics stand for them.
const Evaluation* find_running(const TrainSummary& run) {
  return are_running(run.evaluation.eval_stats) ? &run.evaluation
                                                : find_evaluation(run, EvalStats::kDevice0);
}

std::optional<StatisticsScores> of_run(const TrainSummary& run) {
  const Evaluation *batch = find_evaluation(run, EvalStats::kBatch), *running = find_running(run);
  if (batch == nullptr || running == nullptr) return std::nullopt;
  auto scores = compare_statistics(*running, *batch);
  const Evaluation* precise = find_evaluation(run, EvalStats::kPrecise);
  if (scores && precise != nullptr) scores->precise_score = score(*precise);
  return scores;
}

const char* to_string(ValidationFault fault) {
  switch (fault) {
    case ValidationFault::kNoStatistics:
      return "none";
    case ValidationFault::kStatistics:
      return "statistics";
    case ValidationFault::kEvaluation:
      return "evaluation";
    case ValidationFault::kWeights:
      return "weights";
    case ValidationFault::kUnknown:
      break;
  }
  return "unknown";
}

std::string verdict_of(const StatisticsScores& scores) {
  const std::string precise = fmt::format("precise ones {:.2f}", scores.precise_score.value_or(0));
  switch (fault_of(scores)) {
    case ValidationFault::kNoStatistics:
      return "running statistics do as well as the batches' own, so a bad validation does not come "
             "from them";
    case ValidationFault::kStatistics:
      return fmt::format(
          "with {} the same weights do better, so the running statistics are at "
          "fault: evaluate with bn.eval_stats = \"precise\", raise bn.momentum, or "
          "freeze (bn.freeze_at)",
          precise);
    case ValidationFault::kEvaluation:
      return fmt::format(
          "with {} that does not come back, since the weights were trained by each image's own "
          "statistics: evaluate by them (bn.eval_stats = \"own\"), and compare that with "
          "bn.mode = \"sync\"",
          precise);
    case ValidationFault::kWeights:
      return fmt::format(
          "with {} that does not come back, so the weights rely on the statistics of their batch, "
          "which one image does not have: compare bn.mode = \"sync\" and norms by image "
          "(\"instance\", \"group\")",
          precise);
    case ValidationFault::kUnknown:
      break;
  }
  return "bn.eval_stats = \"precise\" tells whether the statistics or the weights are at fault";
}

}  // namespace

const Evaluation* find_evaluation(const TrainSummary& run, EvalStats stats) {
  if (run.evaluation.eval_stats == stats) return &run.evaluation;
  const auto found = std::ranges::find(run.other_stats, stats, &Evaluation::eval_stats);
  return found == run.other_stats.end() ? nullptr : &*found;
}

std::optional<StatisticsScores> compare_statistics(const Evaluation& running,
                                                   const Evaluation& batch) {
  const std::optional<double> with_running = score(running), with_batch = score(batch);
  if (!with_running || !with_batch) return std::nullopt;
  return StatisticsScores{.score_name = score_name(running.task),
                          .together = batch.together,
                          .running_score = *with_running,
                          .batch_score = *with_batch,
                          .running_loss = *running.loss,
                          .batch_loss = *batch.loss,
                          .precise_score = {}};
}

std::optional<StatisticsScores> compare_statistics(std::span<const TrainSummary> runs) {
  std::vector<StatisticsScores> all;
  for (const TrainSummary& run : runs) {
    if (const auto scores = of_run(run)) all.push_back(*scores);
  }
  if (all.empty()) return std::nullopt;
  const auto mean = [&](const auto& value) {
    double sum = 0;
    for (const StatisticsScores& scores : all) sum += value(scores);
    return sum / static_cast<double>(all.size());
  };
  StatisticsScores scores = all.front();
  scores.running_score = mean([](const StatisticsScores& one) { return one.running_score; });
  scores.batch_score = mean([](const StatisticsScores& one) { return one.batch_score; });
  scores.running_loss = mean([](const StatisticsScores& one) { return one.running_loss; });
  scores.batch_loss = mean([](const StatisticsScores& one) { return one.batch_loss; });
  const bool precise = std::ranges::all_of(
      all, [](const StatisticsScores& one) { return one.precise_score.has_value(); });
  scores.precise_score.reset();
  if (precise) {
    scores.precise_score = mean([](const StatisticsScores& one) { return *one.precise_score; });
  }
  return scores;
}

ValidationFault fault_of(const StatisticsScores& scores) {
  if (scores.score() < kAlikeStatistics) return ValidationFault::kNoStatistics;
  if (!scores.precise_score) return ValidationFault::kUnknown;
  const double won_back = *scores.precise_score - scores.running_score;
  if (won_back >= scores.score() / 2) return ValidationFault::kStatistics;
  return scores.together == 1 ? ValidationFault::kEvaluation : ValidationFault::kWeights;
}

std::string explain(const StatisticsScores& scores) {
  return fmt::format(
      "statistics of {} image{} give {} {:.2f} (loss {:.4f}), running ones {:.2f} (loss {:.4f}): "
      "{}",
      scores.together, scores.together == 1 ? "" : "s together", scores.score_name,
      scores.batch_score, scores.batch_loss, scores.running_score, scores.running_loss,
      verdict_of(scores));
}

std::optional<std::string> explain_own(const TrainSummary& run) {
  const Evaluation *own = find_evaluation(run, EvalStats::kOwn), *running = find_running(run);
  if (own == nullptr || running == nullptr) return std::nullopt;
  const std::optional<double> by_own = score(*own), by_running = score(*running);
  if (!by_own || !by_running || *by_own - *by_running < kAlikeStatistics) return std::nullopt;
  return fmt::format(
      "by each image's own statistics these weights score {:.2f} points of {} more than by running "
      "ones: evaluate by them (bn.eval_stats = \"own\"), and see lockstep docs which_norm",
      *by_own - *by_running, score_name(own->task));
}

Json to_json(const StatisticsScores& scores) {
  return {{"together", scores.together},
          {"loss", scores.loss()},
          {scores.score_name, scores.score()},
          {"fault", to_string(fault_of(scores))},
          {"text", explain(scores)}};
}

}  // namespace lockstep
