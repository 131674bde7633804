#pragma once
// The train/eval disparity of BatchNorm (Buglakova et al., ICCV 2025): one set of weights,
// evaluated by the statistics of batches as training saw them and by the running ones. It tells
// statistics that do not fit the weights from weights that no running statistics fit.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/json.h"
#include "run/summary.h"

namespace lockstep {

/// The run's evaluation under these statistics; null where it made none.
const Evaluation* find_evaluation(const TrainSummary& run, EvalStats stats);

/// Evaluations of the same weights, in the score's points and in loss; means over runs.
struct StatisticsScores {
  std::string score_name;
  std::int64_t together = 0;  // images of a batch's statistics
  double running_score = 0, batch_score = 0;
  double running_loss = 0, batch_loss = 0;
  std::optional<double> precise_score;

  /// Batch statistics minus running ones.
  double score() const { return batch_score - running_score; }
  double loss() const { return batch_loss - running_loss; }
};

/// Compares one step's evaluations; none where a score is undefined.
std::optional<StatisticsScores> compare_statistics(const Evaluation& running,
                                                   const Evaluation& batch);

/// Compares those of finished runs that evaluated by both, averaged; none where no run did.
std::optional<StatisticsScores> compare_statistics(std::span<const TrainSummary> runs);

/// What a validation that is worse than hoped for comes from.
enum class ValidationFault : std::uint8_t {
  kNoStatistics,  // running statistics do as well as the batches' own
  kStatistics,    // better running statistics of the same weights would mend it
  kEvaluation,    // none would, and each image's own do: the weights were trained by these
  kWeights,       // none would: the weights rely on what images have in common by chance
  kUnknown,       // precise statistics would tell, and were not evaluated
};

/// Points of score below which two kinds of statistics do equally well.
inline constexpr double kAlikeStatistics = 1;

/// The rule: batch statistics ahead by less than kAlikeStatistics are no fault; precise statistics
/// that win back half of a greater lead make it one of the statistics. Where they do not, it is one
/// of the evaluation if the batches are single images, whose statistics any evaluation has, and of
/// the weights if not.
ValidationFault fault_of(const StatisticsScores& scores);

/// It in a sentence, with the figures and what mends it.
std::string explain(const StatisticsScores& scores);

/// That each image's own statistics score higher than running ones by more than kAlikeStatistics,
/// and what follows, in a sentence; none where they do not or the run did not evaluate by both.
std::optional<std::string> explain_own(const TrainSummary& run);

/// "together", "loss", the score by its name (all batch minus running), "fault" and "text".
Json to_json(const StatisticsScores& scores);

}  // namespace lockstep
