#pragma once
// run.log: the lines for people, which the console shows, too.

#include <cstdint>
#include <memory>
#include <string>

#include "run/run_sink.h"

namespace spdlog {
class logger;
}

namespace lockstep {

class RunLog : public RunSink {
 public:
  RunLog(const RunFolder& folder, Console console);

  void info(const std::string& text);
  void warning(const std::string& text);
  /// run.log only: who throws an error leaves it to `main` to show it. Safe from any thread.
  void record_error(const std::string& text);
  /// Tells who shows progress (core/progress.h), if the console has all lines.
  void show_progress(std::int64_t done, std::int64_t total, double loss) const;

  void begin(const RunDescription& run) override;
  void step(const StepReport& report) override;
  void evaluation(const EvaluationRecord& record) override;
  void warning(std::int64_t step, const std::string& text) override;
  void end(const RunEnd& end) override;

 private:
  std::shared_ptr<spdlog::logger> logger_;  // console and file
  std::shared_ptr<spdlog::logger> file_;    // run.log alone
  std::shared_ptr<spdlog::logger> bare_;    // console and file, no prefix
  bool quiet_ = false;                      // the console has warnings at most
};

}  // namespace lockstep
