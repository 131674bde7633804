#pragma once
// run.log: the lines for people, which the console shows, too.

#include <cstdint>
#include <mutex>
#include <string>

#include "io/written_file.h"
#include "run/run_sink.h"

namespace lockstep {

struct LogLevel {
  const char* name;   // as mmengine writes it
  const char* color;  // what begins it on a terminal
};

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
  void write(const LogLevel& level, const std::string& text, bool shown);
  /// Nothing goes to the console where `to_console` is empty.
  void write(const std::string& to_file, const std::string& to_console);

  std::mutex mutex_;
  WrittenFile file_;
  Console console_;
  bool colors_;
};

}  // namespace lockstep
