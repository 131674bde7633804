#include "compare/comparison.h"
#include "core/json.h"

namespace lockstep {
namespace {

Json spread_json(const MeanSpread& spread) {
  return {
      {"n", spread.count}, {"mean", spread.mean}, {"sd", json_or_null(spread.standard_deviation)}};
}

Json layers_json(const std::vector<LayerComparison>& layers) {
  Json list = Json::array();
  for (const LayerComparison& layer : layers) {
    list.push_back({{"layer", layer.layer},
                    {"count", layer.count},
                    {"between_within_mean", layer.ratio_mean},
                    {"between_within_max", layer.ratio_max},
                    {"log_var_ratio", layer.log_var_ratio}});
  }
  return list;
}

/// In the folder of a comparison its runs have names that move with it.
std::string run_name(const std::filesystem::path& run, const std::filesystem::path& folder) {
  return (folder.empty() ? run : std::filesystem::proximate(run, folder)).generic_string();
}

Json scores_by_seed(const Row& row) {
  Json seeds = Json::object();
  for (const auto& [seed, reached] : row.score) seeds[std::to_string(seed)] = reached;
  return seeds;
}

Json row_json(const Row& row, const Comparison& comparison) {
  Json json{{"row", row.name},
            {"mode", comparison.modes[row.mode].mode},
            {"eval_stats", to_string(row.stats)},
            {comparison.score, spread_json(row.score_spread)},
            {comparison.score + "_by_seed", scores_by_seed(row)},
            {"val_loss", spread_json(row.val_loss)}};
  if (row.mismatch.count > 0) json["tile_mismatch"] = spread_json(row.mismatch);
  return json;
}

/// With the scores of `row`, as its runs are evaluated.
Json mode_json(const ModeResult& mode, const Row& row, const std::string& score,
               const std::filesystem::path& folder) {
  Json runs = Json::object();
  for (const auto& [seed, run] : mode.runs) runs[std::to_string(seed)] = run_name(run, folder);
  Json other = Json::object();
  for (const auto& [stats, spread] : mode.other_stats) other[stats] = spread_json(spread);
  return {{"mode", mode.mode},
          {"devices", mode.devices},
          {"sync_layers", mode.sync_layers},
          {"runs", runs},
          {score, spread_json(row.score_spread)},
          {score + "_by_seed", scores_by_seed(row)},
          {score + "_by_eval_stats", other},
          {"val_loss", spread_json(row.val_loss)},
          {"train_loss", spread_json(mode.train_loss)},
          {"ms_per_step", spread_json(mode.step_ms)},
          {"images_per_second", spread_json(mode.images_per_second)},
          {"waiting_share", spread_json(mode.waiting_share)},
          {"shares_cores", mode.shares_cores},
          {"batch_norms", layers_json(mode.layers)}};
}

Json pair_json(const PairedDifference& pair, const Adjustment& adjustment) {
  const Verdict shown = verdict(pair, adjustment.together);
  Json interval = nullptr;
  if (pair.interval) interval = {pair.interval->low, pair.interval->high};
  return {
      {"a", pair.a},
      {"b", pair.b},
      {"answer", answer(pair)},
      {"seeds", pair.seeds},
      {"differences", pair.differences},
      {"mean", pair.spread.mean},
      {"sd", json_or_null(pair.spread.standard_deviation)},
      {"confidence", 1 - kLevel},
      {"interval", interval},
      {"p_value", json_or_null(pair.p_value)},
      {adjustment.key, json_or_null(pair.p_adjusted)},
      {"smallest_p", pair.smallest_p},
      {"verdict",
       {{"kind", to_string(shown.kind)}, {"text", shown.claim}, {"more_seeds", shown.more_seeds}}}};
}

Json point_json(const CurveLine& line, const CurvePoint& point, const Comparison& comparison) {
  const Row& cell = comparison.rows[point.cell];
  Json interval = nullptr;
  if (const auto found = score_interval(cell)) interval = {found->low, found->high};
  return {{"images", line.flat ? Json(nullptr) : Json(point.images)},
          {"cell", cell.name},
          {comparison.score, spread_json(cell.score_spread)},
          {"interval", interval}};
}

Json best_json(const BestRow& best, const Comparison& comparison) {
  const Row& row = comparison.rows[best.row];
  return {{"row", row.name},
          {"settled", best.settled},
          {"better_than", best.better_than},
          {"worse_than", best.worse_than},
          {"not_told_apart", best.not_told_apart},
          {"claim", best.claim(comparison)},
          {"cost", cost_of(row)}};
}

Json steps_json(const std::vector<CurveStep>& steps, const Comparison& comparison) {
  Json list = Json::array();
  for (const CurveStep& step : steps) {
    list.push_back({{"mode", step.mode},
                    {"images", step.images == 0 ? Json(nullptr) : Json(step.images)},
                    {"a", comparison.pairs[step.pair].a},
                    {"b", comparison.pairs[step.pair].b}});
  }
  return list;
}

/// Its differences stand among the pairs.
Json curve_json(const Comparison& comparison, const Curve& curve) {
  Json lines = Json::array();
  for (const CurveLine& line : curve.lines) {
    Json points = Json::array();
    for (const CurvePoint& point : line.points)
      points.push_back(point_json(line, point, comparison));
    lines.push_back({{"mode", line.mode}, {"points", points}});
  }
  return {{"global_batch", curve.batch},
          {"images_per_device", curve.images},
          {"lines", lines},
          {"synchronizing", steps_json(curve.synchronizing, comparison)},
          {"evaluating", steps_json(curve.evaluating, comparison)},
          {"beyond_own", steps_json(curve.beyond_own, comparison)},
          {"rivals", steps_json(curve.rivals, comparison)},
          {"some_layers", steps_json(curve.some_layers, comparison)},
          {"other_layers", steps_json(curve.other_layers, comparison)},
          {"more_images", steps_json(curve.more_images, comparison)}};
}

}  // namespace

std::string to_json(const Comparison& comparison, const std::filesystem::path& folder) {
  Json modes = Json::array();
  for (std::size_t m = 0; m < comparison.modes.size(); ++m) {
    modes.push_back(mode_json(comparison.modes[m], comparison.rows[m], comparison.score, folder));
  }
  Json rows = Json::array();
  for (const Row& row : comparison.rows) rows.push_back(row_json(row, comparison));
  Json pairs = Json::array();
  for (const PairedDifference& pair : comparison.pairs) {
    pairs.push_back(pair_json(pair, comparison.adjustment));
  }
  Json failed = Json::array();
  for (const FailedRun& run : comparison.failed)
    failed.push_back({{"mode", run.mode}, {"seed", run.seed}, {"error", run.error}});
  Json root{{"schema", 1},    {"score", comparison.score},       {"modes", modes},  {"rows", rows},
            {"pairs", pairs}, {"warnings", comparison.warnings}, {"failed", failed}};
  if (const auto best = best_row(comparison)) root["best"] = best_json(*best, comparison);
  if (comparison.curve) root["curve"] = curve_json(comparison, *comparison.curve);
  return json_text(root, 2) + "\n";
}

}  // namespace lockstep
