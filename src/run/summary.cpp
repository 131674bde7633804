#include "run/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "config/config.h"
#include "core/json.h"
#include "lockstep/core/check.h"
#include "run/disparity.h"
#include "run/json_fields.h"
#include "run/json_lines.h"
#include "run/run_folder.h"
#include "run/summary_json.h"

namespace lockstep {
namespace {

std::optional<double> number_or_null(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

EvalStats to_eval_stats(const std::string& name) {
  for (const Named<EvalStats>& known : names_of(EvalStats{})) {
    if (name == known.name) return known.value;
  }
  return EvalStats::kPrecise;
}

std::string best_key(Task task) { return concat("best_", score_name(task)); }

Json confusion_json(const std::vector<std::int64_t>& confusion, std::size_t classes) {
  Json rows = Json::array();
  for (std::size_t row = 0; classes > 0 && row < confusion.size() / classes; ++row) {
    rows.push_back(std::vector<std::int64_t>(confusion.begin() + row * classes,
                                             confusion.begin() + (row + 1) * classes));
  }
  return rows;
}

Json spread_json(const std::vector<float>& values) {
  const auto [min, max] = std::ranges::minmax_element(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"min", *min}, {"mean", sum / static_cast<double>(values.size())}, {"max", *max}};
}

// The confusion matrix says all: the metrics are computed again from it.
Evaluation evaluation_from(const Json& json) {
  Evaluation evaluation;
  evaluation.eval_stats = to_eval_stats(json.at("eval_stats"));
  evaluation.loss = number_or_null(json.at("loss"));
  evaluation.images = json.at("images");
  evaluation.together = json.value("together", std::int64_t{0});
  evaluation.seconds = json.at("seconds");
  if (const auto found = json.find("tile_mismatch"); found != json.end()) {
    evaluation.mismatch =
        TileMismatch{found->at("pixels"), found->at("difference"), found->at("other_class")};
  }
  const Json& rows = json.at("confusion");
  for (const Json& row : rows) {
    for (const Json& value : row) evaluation.confusion.push_back(value);
  }
  if (json.contains(score_name(Task::kClassification))) {
    evaluation.task = Task::kClassification;
    evaluation.top5 = number_or_null(json.at("top5"));
  }
  if (!rows.empty()) {
    evaluation.metrics = confusion_metrics(evaluation.confusion, static_cast<int>(rows.size()));
  }
  return evaluation;
}

Json to_json(const std::vector<Evaluation>& evaluations, const std::vector<std::string>& classes) {
  Json json = Json::array();
  for (const Evaluation& evaluation : evaluations) json.push_back(to_json(evaluation, classes));
  return json;
}

std::vector<Evaluation> evaluations_from(const Json& json) {
  std::vector<Evaluation> evaluations;
  for (const Json& evaluation : json) evaluations.push_back(evaluation_from(evaluation));
  return evaluations;
}

// The last `end` line that says done, unless a `resume` line follows it. Which cell of a comparison
// the run is its first line says: who resumes it need not know.
std::optional<Json> find_summary(const std::filesystem::path& path) {
  std::optional<Json> summary;
  Json cell = Json::object();
  for_each_json_line(path, [&](const Json& json) {
    const std::string type = json.value("type", "");
    if (type == "header" || type == "resume") summary.reset();
    if (type == "header") cell = to_json(read_fields<CellLabels>(json));
    if (type == "end" && json.value("status", "") == "done") summary = json.at("summary");
  });
  if (summary) summary->update(cell);
  return summary;
}

}  // namespace

// --- the fields of records, in the order of the files ---

template <typename Visitor, Of<BatchNormDiagnostics> Record>
void fields(Visitor& field, Record& layer) {
  field("step", layer.step);
  field("layer", layer.layer);
  field("parts", layer.parts);
  field("count", layer.count);
  field("channels", layer.channels);
  field("within", layer.within);
  field("between", layer.between);
  field("ratio_mean", layer.ratio_mean);
  field("ratio_max", layer.ratio_max);
  field("log_var_ratio", layer.log_var_ratio);
  field("running_mean_spread", layer.running_mean_spread);
}

template <typename Visitor, Of<RankReport> Record>
void fields(Visitor& field, Record& report) {
  field("rank", report.rank);
  field("device", report.device);
  field("loss", report.loss);
  field("compute", report.times.compute);
  field("bn_wait", report.times.batch_norm_wait);
  field("exchange", report.times.gradient_exchange);
  field("memory_bytes", report.memory_bytes);
  field("peak_memory_bytes", report.peak_memory_bytes);
  if (!field.has("weights_hash", !report.weights_hash.empty())) return;
  field("weights_hash", report.weights_hash);
  field("statistics_hash", report.statistics_hash);
  field("smallest_running_var", report.smallest_running_var);
}

template <typename Visitor, Of<MeanTimes> Record>
void fields(Visitor& field, Record& times) {
  field("step", times.step);
  field("data", times.data);
  field("compute", times.compute);
  field("bn_wait", times.batch_norm_wait);
  field("exchange", times.gradient_exchange);
  field("median_step", times.median_step);
}

template <typename Visitor, Of<CellLabels> Record>
void fields(Visitor& field, Record& cell) {
  if (field.has("images_per_device", cell.images_per_device > 0))
    field("images_per_device", cell.images_per_device);
  if (field.has("sync_top", cell.sync_top > 0)) field("sync_top", cell.sync_top);
}

template <typename Visitor, Of<TrainSummary> Record>
void fields(Visitor& field, Record& summary) {
  field("config_hash", summary.config_hash);
  if (field.has("data_hash", !summary.data_hash.empty())) field("data_hash", summary.data_hash);
  field("bn_mode", summary.bn_mode);
  fields(field, summary.cell);
  if (field.has("sync_layers", !summary.sync_layers.empty()))
    field("sync_layers", summary.sync_layers);
  field("seed", summary.seed);
  field("devices", summary.devices);
  field.added("placement", summary.placement);
  field("device_count", summary.device_count);
  field("global_batch", summary.global_batch);
  field("iterations", summary.iterations);
  field("max_iters", summary.max_iters);
  field("parameters", summary.parameters);
  field("classes", summary.classes);
  const std::vector<std::string>& classes = summary.classes;
  field.as(
      "evaluation", summary.evaluation,
      [&](const Evaluation& evaluation) { return to_json(evaluation, classes); }, evaluation_from);
  field.as(
      "other_stats", summary.other_stats,
      [&](const std::vector<Evaluation>& others) { return to_json(others, classes); },
      evaluations_from);
  field(best_key(summary.evaluation.task).c_str(), summary.best_score);
  field("best_iter", summary.best_iter);
  field("train_loss", summary.train_loss);
  field("times", summary.times);
  field("images_per_second", summary.images_per_second);
  field("waiting_share", summary.waiting_share);
  field.added("shares_cores", summary.shares_cores);
  field("peak_memory_mb", summary.peak_memory_mb);
  field.added("ranks", summary.ranks);
  field("batch_norms", summary.batch_norms);
}

const char* mode_of(const Evaluation& evaluation) {
  return evaluation.averaged ? "val_ema" : "val";
}

const char* score_name(Task task) { return task == Task::kSegmentation ? "mIoU" : "top1"; }

std::optional<double> score(const Evaluation& evaluation) {
  if (!evaluation.loss || !std::isfinite(*evaluation.loss)) return std::nullopt;
  const bool segments = evaluation.task == Task::kSegmentation;
  return segments ? evaluation.metrics.m_iou : evaluation.metrics.a_acc;
}

Json to_json(const BatchNormDiagnostics& layer) { return with_fields({{"type", "bn"}}, layer); }

BatchNormDiagnostics diagnostics_from(const Json& json) {
  return read_fields<BatchNormDiagnostics>(json);
}

Json to_json(const RankReport& report) { return with_fields({}, report); }

Json to_json(const CellLabels& cell) { return with_fields(Json::object(), cell); }

Json to_json(const TrainSummary& summary) {
  Json json = with_fields({}, summary);
  if (const auto scores = compare_statistics({&summary, 1})) json["disparity"] = to_json(*scores);
  return json;
}

Json to_json(const PartMoments& part, bool channels) {
  if (part.count == 0) return {{"count", 0}, {"mean", nullptr}, {"var", nullptr}};
  std::vector<float> vars;
  for (const float m2 : part.m2) vars.push_back(m2 / static_cast<float>(part.count));
  Json json{{"count", part.count}, {"mean", spread_json(part.mean)}, {"var", spread_json(vars)}};
  if (channels) {
    json["means"] = part.mean;
    json["vars"] = vars;
  }
  return json;
}

Json metrics_json(const Evaluation& evaluation, const std::vector<std::string>& classes) {
  const ConfusionMetrics& metrics = evaluation.metrics;
  Json json{{"eval_stats", to_string(evaluation.eval_stats)}};
  if (evaluation.task == Task::kClassification) {
    json.update({{"top1", json_or_null(metrics.a_acc)},
                 {"top5", json_or_null(evaluation.top5)},
                 {"mAcc", json_or_null(metrics.m_acc)},
                 {"loss", json_or_null(evaluation.loss)}});
    for (std::size_t c = 0; c < metrics.acc.size() && c < classes.size(); ++c) {
      json["Acc." + classes[c]] = json_or_null(metrics.acc[c]);
    }
    return json;
  }
  json.update({{"aAcc", json_or_null(metrics.a_acc)},
               {"mIoU", json_or_null(metrics.m_iou)},
               {"mAcc", json_or_null(metrics.m_acc)},
               {"mIoU_present", json_or_null(metrics.m_iou_present)},
               {"loss", json_or_null(evaluation.loss)}});
  for (std::size_t c = 0; c < metrics.iou.size() && c < classes.size(); ++c) {
    json["IoU." + classes[c]] = json_or_null(metrics.iou[c]);
    json["Acc." + classes[c]] = json_or_null(metrics.acc[c]);
  }
  return json;
}

Json to_json(const Evaluation& evaluation, const std::vector<std::string>& classes) {
  Json json = metrics_json(evaluation, classes);
  json["images"] = evaluation.images;
  if (evaluation.together > 0) json["together"] = evaluation.together;
  json["seconds"] = evaluation.seconds;
  if (const auto& mismatch = evaluation.mismatch) {
    json["tile_mismatch"] = {{"pixels", mismatch->pixels},
                             {"difference", mismatch->difference},
                             {"other_class", mismatch->other_class},
                             {"mean_difference", mismatch->mean_difference()},
                             {"other_class_percent", 100 * mismatch->share_of_other_class()}};
  }
  json["confusion"] = confusion_json(evaluation.confusion, classes.size());
  return json;
}

std::string data_hash_of(const std::filesystem::path& run) {
  std::string hash;
  for_each_json_line(RunFolder{run}.events(), [&](const Json& json) {
    const std::string type = json.value("type", "");
    if (type != "header" && type != "resume") return;
    hash = json.contains("data") ? json.at("data").value("hash", "") : "";
  });
  return hash;
}

std::optional<TrainSummary> read_summary(const std::filesystem::path& run) {
  const std::filesystem::path events = RunFolder{run}.events();
  try {
    const std::optional<Json> json = find_summary(events);
    if (!json) return std::nullopt;
    auto summary = read_fields<TrainSummary>(*json);
    summary.run = run;
    summary.bn_mode = current_mode_name(summary.bn_mode);
    if (summary.placement.empty()) summary.placement = summary.devices;
    return summary;
  } catch (const Json::exception& error) {
    throw DataError(concat(events.string(), ": damaged: ", error.what()));
  }
}

}  // namespace lockstep
