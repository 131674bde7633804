#pragma once
// JSON forms of what a run reports. Percent are not rounded; null means undefined.

#include "train/bn_lens.h"
#include "train/run_log.h"
#include "train/summary.h"

namespace lockstep {

Json to_json(const std::optional<double>& value);
/// A line of type "bn".
Json to_json(const BatchNormLens& lens);
/// "rank", "device", "loss", "compute", "bn_wait", "exchange", "memory_bytes", "peak_memory_bytes".
Json to_json(const RankReport& report);
/// "eval_stats", "aAcc", "mIoU", "mAcc", "mIoU_present", "loss", "IoU.<class>", "Acc.<class>".
Json metrics_json(const Evaluation& evaluation, const std::vector<std::string>& classes);
/// Everything, to be read again; `type`: "eval" in events.jsonl.
Json to_json(const Evaluation& evaluation, const std::vector<std::string>& classes);
Json to_json(const TrainSummary& summary);

}  // namespace lockstep
