#include "run/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "config/config.h"
#include "core/json.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"
#include "run/summary_json.h"

namespace lockstep {
namespace {

std::optional<double> to_optional(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

EvalStats to_eval_stats(const std::string& name) {
  for (const EvalStats stats : {EvalStats::kDevice0, EvalStats::kMean, EvalStats::kPooled}) {
    if (name == to_string(stats)) return stats;
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
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"min", *min}, {"mean", sum / static_cast<double>(values.size())}, {"max", *max}};
}

// The confusion matrix says all: the metrics are computed again from it.
Evaluation evaluation_from(const Json& json) {
  Evaluation evaluation;
  evaluation.eval_stats = to_eval_stats(json.at("eval_stats"));
  evaluation.loss = to_optional(json.at("loss"));
  evaluation.images = json.at("images");
  evaluation.seconds = json.at("seconds");
  const Json& rows = json.at("confusion");
  for (const Json& row : rows) {
    for (const Json& value : row) evaluation.confusion.push_back(value);
  }
  if (json.contains(score_name(Task::kClassification))) {
    evaluation.task = Task::kClassification;
    evaluation.top5 = to_optional(json.at("top5"));
  }
  if (!rows.empty()) {
    evaluation.metrics = confusion_metrics(evaluation.confusion, static_cast<int>(rows.size()));
  }
  return evaluation;
}

MeanTimes times_from(const Json& json) {
  return {json.at("step"),    json.at("data"),     json.at("compute"),
          json.at("bn_wait"), json.at("exchange"), json.at("median_step")};
}

RankReport rank_from(const Json& json) {
  RankReport report;
  report.rank = json.at("rank");
  report.device = json.at("device");
  report.loss = json.at("loss");
  report.times = {json.at("compute"), json.at("bn_wait"), json.at("exchange")};
  report.memory_bytes = json.at("memory_bytes");
  report.peak_memory_bytes = json.at("peak_memory_bytes");
  if (!json.contains("weights_hash")) return report;
  report.weights_hash = json.at("weights_hash");
  report.statistics_hash = json.at("statistics_hash");
  const Json& smallest = json.at("smallest_running_var");
  if (!smallest.is_null()) report.smallest_running_var = smallest.get<float>();
  return report;
}

TrainSummary summary_from(const Json& json) {
  TrainSummary summary;
  summary.config_hash = json.at("config_hash");
  summary.bn_mode = current_mode_name(json.at("bn_mode"));
  summary.seed = json.at("seed");
  summary.devices = json.at("devices");
  summary.placement = json.value("placement", summary.devices);
  summary.device_count = json.at("device_count");
  summary.global_batch = json.at("global_batch");
  summary.iterations = json.at("iterations");
  summary.max_iters = json.at("max_iters");
  summary.parameters = json.at("parameters");
  summary.classes = json.at("classes").get<std::vector<std::string>>();
  summary.evaluation = evaluation_from(json.at("evaluation"));
  for (const Json& other : json.at("other_stats")) {
    summary.other_stats.push_back(evaluation_from(other));
  }
  summary.best_score = to_optional(json.at(best_key(summary.evaluation.task)));
  summary.best_iter = json.at("best_iter");
  summary.train_loss = json.at("train_loss");
  summary.times = times_from(json.at("times"));
  summary.images_per_second = json.at("images_per_second");
  summary.waiting_share = json.at("waiting_share");
  summary.shares_cores = json.value("shares_cores", false);
  summary.peak_memory_mb = json.at("peak_memory_mb");
  // Runs of earlier versions do not tell of their ranks.
  for (const Json& rank : json.value("ranks", Json::array())) {
    summary.ranks.push_back(rank_from(rank));
  }
  for (const Json& lens : json.at("batch_norms")) summary.batch_norms.push_back(lens_from(lens));
  return summary;
}

// The last `end` line that says done, unless a `resume` line follows it.
std::optional<Json> find_summary(const std::filesystem::path& path) {
  std::optional<Json> summary;
  for_each_json_line(path, [&](const Json& json) {
    const std::string type = json.value("type", "");
    if (type == "header" || type == "resume") summary.reset();
    if (type == "end" && json.value("status", "") == "done") summary = json.at("summary");
  });
  return summary;
}

}  // namespace

const char* score_name(Task task) { return task == Task::kSegmentation ? "mIoU" : "top1"; }

std::optional<double> score(const Evaluation& evaluation) {
  if (!evaluation.loss || !std::isfinite(*evaluation.loss)) return std::nullopt;
  const bool segments = evaluation.task == Task::kSegmentation;
  return segments ? evaluation.metrics.m_iou : evaluation.metrics.a_acc;
}

Json to_json(const BatchNormLens& lens) {
  return {{"type", "bn"},
          {"step", lens.step},
          {"layer", lens.layer},
          {"parts", lens.parts},
          {"count", lens.count},
          {"channels", lens.channels},
          {"within", lens.within},
          {"between", lens.between},
          {"ratio_mean", lens.ratio_mean},
          {"ratio_max", lens.ratio_max},
          {"log_var_ratio", lens.log_var_ratio},
          {"running_mean_spread", lens.running_mean_spread}};
}

BatchNormLens lens_from(const Json& json) {
  BatchNormLens lens;
  lens.layer = json.at("layer");
  lens.step = json.at("step");
  lens.count = json.at("count");
  lens.parts = json.at("parts");
  lens.channels = json.at("channels");
  lens.within = json.at("within");
  lens.between = json.at("between");
  lens.ratio_mean = json.at("ratio_mean");
  lens.ratio_max = json.at("ratio_max");
  lens.log_var_ratio = json.at("log_var_ratio");
  lens.running_mean_spread = json.at("running_mean_spread");
  return lens;
}

Json to_json(const RankReport& report) {
  Json json{{"rank", report.rank},
            {"device", report.device},
            {"loss", report.loss},
            {"compute", report.times.compute},
            {"bn_wait", report.times.batch_norm_wait},
            {"exchange", report.times.gradient_exchange},
            {"memory_bytes", report.memory_bytes},
            {"peak_memory_bytes", report.peak_memory_bytes}};
  if (report.weights_hash.empty()) return json;
  json["weights_hash"] = report.weights_hash;
  json["statistics_hash"] = report.statistics_hash;
  json["smallest_running_var"] =
      report.smallest_running_var ? Json(*report.smallest_running_var) : Json(nullptr);
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
  json["seconds"] = evaluation.seconds;
  json["confusion"] = confusion_json(evaluation.confusion, classes.size());
  return json;
}

Json to_json(const TrainSummary& summary) {
  Json others = Json::array(), ranks = Json::array(), lenses = Json::array();
  for (const Evaluation& other : summary.other_stats) {
    others.push_back(to_json(other, summary.classes));
  }
  for (const RankReport& rank : summary.ranks) ranks.push_back(to_json(rank));
  for (const BatchNormLens& lens : summary.batch_norms) lenses.push_back(to_json(lens));
  return {{"config_hash", summary.config_hash},
          {"bn_mode", summary.bn_mode},
          {"seed", summary.seed},
          {"devices", summary.devices},
          {"placement", summary.placement},
          {"device_count", summary.device_count},
          {"global_batch", summary.global_batch},
          {"iterations", summary.iterations},
          {"max_iters", summary.max_iters},
          {"parameters", summary.parameters},
          {"classes", summary.classes},
          {"evaluation", to_json(summary.evaluation, summary.classes)},
          {"other_stats", others},
          {best_key(summary.evaluation.task), json_or_null(summary.best_score)},
          {"best_iter", summary.best_iter},
          {"train_loss", summary.train_loss},
          {"times",
           {{"step", summary.times.step},
            {"data", summary.times.data},
            {"compute", summary.times.compute},
            {"bn_wait", summary.times.batch_norm_wait},
            {"exchange", summary.times.gradient_exchange},
            {"median_step", summary.times.median_step}}},
          {"images_per_second", summary.images_per_second},
          {"waiting_share", summary.waiting_share},
          {"shares_cores", summary.shares_cores},
          {"peak_memory_mb", summary.peak_memory_mb},
          {"ranks", ranks},
          {"batch_norms", lenses}};
}

std::optional<TrainSummary> read_summary(const std::filesystem::path& run) {
  const std::filesystem::path events = RunFolder{run}.events();
  try {
    const std::optional<Json> json = find_summary(events);
    if (!json) return std::nullopt;
    TrainSummary summary = summary_from(*json);
    summary.run = run;
    return summary;
  } catch (const Json::exception& error) {
    throw DataError(concat(events.string(), ": damaged: ", error.what()));
  }
}

}  // namespace lockstep
