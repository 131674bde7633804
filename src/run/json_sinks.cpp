// scalars.json (what only configuration and device count decide), timing.jsonl (what time touches)
// and events.jsonl (typed), with the ranks' own where they are wanted: the lines of events.jsonl
// that speak of one rank.

#include "run/json_lines.h"
#include "run/run_sink.h"
#include "run/summary_json.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSchema = 1;

class ScalarsFile : public RunSink {
 public:
  explicit ScalarsFile(const RunDescription& run) : file_(run.folder.scalars()) {}

  void scalars(const Json& line) override { file_.write(line); }

 private:
  JsonLines file_;
};

class TimingFile : public RunSink {
 public:
  explicit TimingFile(const RunDescription& run) : file_(run.folder.timing()) {}

  void step(const StepReport& report) override {
    file_.write({{"mode", "train"},
                 {"step", report.iteration},
                 {"time", report.time},
                 {"data_time", report.data_time},
                 {"compute", report.compute},
                 {"bn_wait", report.batch_norm_wait},
                 {"exchange", report.exchange},
                 {"memory", report.memory},
                 {"eta", report.eta}});
  }
  void evaluation(const EvaluationRecord& record) override {
    if (!record.chosen || record.known) return;
    file_.write({{"mode", "val"},
                 {"step", record.step},
                 {"time", record.evaluation.seconds},
                 {"images", record.evaluation.images}});
  }

 private:
  JsonLines file_;
};

class EventsFile : public RunSink {
 public:
  explicit EventsFile(const RunDescription& run) : file_(run.folder.events()) {
    const int rank_logs = run.config.run.rank_logs ? run.device_count : 0;
    for (int rank = 0; rank < rank_logs; ++rank) {
      rank_logs_.emplace_back(run.folder.rank_log(rank));
    }
  }

  void begin(const RunDescription& run) override;
  void ranks(std::int64_t step, std::span<const RankReport> reports) override;
  void batch_norms(const BatchNormRecord& record) override;
  void evaluation(const EvaluationRecord& record) override;
  void checkpoint(std::int64_t step, const std::string& path) override {
    file_.write({{"type", "checkpoint"}, {"step", step}, {"path", path}});
  }
  void warning(std::int64_t step, const std::string& text) override {
    file_.write({{"type", "warning"}, {"step", step}, {"text", text}});
  }
  void end(const RunEnd& end) override;

 private:
  void write_of_rank(std::size_t rank, const Json& line);
  void write_parts(const BatchNormRecord& record, const BatchNormCall& call);

  JsonLines file_;
  std::vector<JsonLines> rank_logs_;  // [rank], or none
};

void EventsFile::begin(const RunDescription& run) {
  const RunOptions& options = run.config.run;
  Json line{{"type", run.resumed.empty() ? "header" : "resume"},
            {"schema", kSchema},
            {"step", run.step},
            {"run", options.name},
            {"config_hash", config_hash(run.config)},
            {"devices", run.devices},
            {"bn_mode", to_string(run.config.bn.mode)},
            {"gradient_exchange", run.gradient_exchange},
            {"seed", options.seed},
            {"precision", to_string(options.precision)},
            {"tf32", run.tf32},
            {"bf16_products", run.bf16_products},
            {"max_iters", run.max_iters},
            {"environment", run.environment}};
  line.update(to_json(run.cell));
  if (!run.data.empty()) line["data"] = run.data;
  file_.write(line);
}

void EventsFile::ranks(std::int64_t step, std::span<const RankReport> reports) {
  for (const RankReport& report : reports) {
    Json line{{"type", "rank"}, {"step", step}};
    line.update(to_json(report));
    write_of_rank(static_cast<std::size_t>(report.rank), line);
  }
}

void EventsFile::batch_norms(const BatchNormRecord& record) {
  for (const BatchNormDiagnostics& layer : record.layers) file_.write(to_json(layer));
  if (record.reading == nullptr) return;
  for (const BatchNormCall& call : record.reading->calls) write_parts(record, call);
  file_.write({{"type", "callbacks"},
               {"step", record.step},
               {"forward", record.forward},
               {"backward", record.backward},
               {"barrier", record.barrier}});
}

void EventsFile::write_parts(const BatchNormRecord& record, const BatchNormCall& call) {
  for (std::size_t rank = 0; rank < call.parts.size(); ++rank) {
    for (std::size_t slice = 0; slice < call.parts[rank].size(); ++slice) {
      Json line{{"type", "bn_part"},
                {"step", record.step},
                {"layer", call.layer},
                {"rank", rank},
                {"slice", slice}};
      line.update(to_json(call.parts[rank][slice], record.channels));
      write_of_rank(rank, line);
    }
  }
}

void EventsFile::evaluation(const EvaluationRecord& record) {
  Json line{{"type", record.evaluation.averaged ? "eval_ema" : "eval"}, {"step", record.step}};
  line.update(to_json(record.evaluation, record.classes));
  if (const auto& scores = record.disparity) {
    line["disparity"] = {{"loss", scores->loss()}, {scores->score_name, scores->score()}};
  }
  file_.write(line);
}

void EventsFile::end(const RunEnd& end) {
  if (end.stalled) {
    file_.write({{"type", "stall"}, {"step", end.step}, {"text", end.details.at("error")}});
  }
  Json line{
      {"type", "end"}, {"step", end.step}, {"status", end.status}, {"exit_code", end.exit_code}};
  line.update(end.details);
  file_.write(line);
}

void EventsFile::write_of_rank(std::size_t rank, const Json& line) {
  file_.write(line);
  if (!rank_logs_.empty()) rank_logs_[rank].write(line);
}

}  // namespace

std::unique_ptr<RunSink> scalars_sink(const RunDescription& run) {
  return std::make_unique<ScalarsFile>(run);
}

std::unique_ptr<RunSink> timing_sink(const RunDescription& run) {
  return std::make_unique<TimingFile>(run);
}

std::unique_ptr<RunSink> events_sink(const RunDescription& run) {
  return std::make_unique<EventsFile>(run);
}

}  // namespace lockstep
