#pragma once
// The recorder of a run: tells every sink what the trainer tells it. (What records the steps of
// GPUs is a Recorder, in sync/transport.h.)

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "run/run_log.h"
#include "run/run_sink.h"

namespace lockstep {

/// The trainer's, used by its thread.
class RunRecorder {
 public:
  /// Makes the folder, or takes from that of a run that goes on what lies after `run.step`:
  /// these steps are trained again. Tells the sinks of the run and the warnings so far.
  RunRecorder(const RunDescription& run, const std::vector<std::string>& warnings);

  void show_progress(std::int64_t done, std::int64_t total, double loss) const;
  void step(const StepReport& report);
  void ranks(std::int64_t step, std::span<const RankReport> reports);
  void batch_norms(const BatchNormRecord& record);
  void evaluation(EvaluationRecord record);
  /// Whether the run had written this step's scores before it was resumed.
  bool knows_scores_of(std::int64_t step) const { return last_validated_ == step; }
  /// `name`: of ckpt/NAME.safetensors.
  void checkpoint(std::int64_t step, const std::string& name);
  void warning(std::int64_t step, const std::string& text);
  /// Why the run ends, into run.log, once. Safe from any thread.
  void error(const std::string& text);
  void end(const RunEnd& end);

 private:
  void open(std::unique_ptr<RunSink> sink);
  void go_on(const RunDescription& run);

  template <typename... Told, typename... Given>
  void tell(void (RunSink::*what)(Told...), const Given&... given) {
    for (const auto& sink : sinks_) ((*sink).*what)(given...);
  }

  std::vector<std::unique_ptr<RunSink>> sinks_;
  RunLog* log_ = nullptr;  // one of them
  std::int64_t last_validated_ = -1;
  int taken_back_ = 0;  // lines of scalars.json
  std::atomic<bool> has_error_{false};
};

}  // namespace lockstep
