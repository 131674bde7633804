#pragma once
// JSON forms of what a run reports. Percent are not rounded; null means undefined.

#include "core/json.h"
#include "run/batch_norm_diagnostics.h"
#include "run/summary.h"

namespace lockstep {

/// A line of type "bn".
Json to_json(const BatchNormDiagnostics& layer);
/// Reads it back. Throws Json::exception for what is missing.
BatchNormDiagnostics diagnostics_from(const Json& json);
/// "rank", "device", "loss", "compute", "bn_wait", "exchange", "memory_bytes", "peak_memory_bytes",
/// and, where they were read, "weights_hash", "statistics_hash", "smallest_running_var".
Json to_json(const RankReport& report);
/// "count", "mean" and "var" (biased), each with "min", "mean" and "max" over the channels, or null
/// when there is nothing to count; with `channels` also "means" and "vars" of all of them.
Json to_json(const PartMoments& part, bool channels);
/// "eval_stats", "aAcc", "mIoU", "mAcc", "mIoU_present", "loss", "IoU.<class>", "Acc.<class>"; of a
/// classification "eval_stats", "top1", "top5", "mAcc", "loss", "Acc.<class>".
Json metrics_json(const Evaluation& evaluation, const std::vector<std::string>& classes);
/// Everything, to be read again; `type`: "eval" in events.jsonl.
Json to_json(const Evaluation& evaluation, const std::vector<std::string>& classes);
/// Those that say something.
Json to_json(const CellLabels& cell);
Json to_json(const TrainSummary& summary);

}  // namespace lockstep
