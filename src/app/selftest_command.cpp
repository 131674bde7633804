// lockstep selftest: whether this build computes on these devices what it should, as one table.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "app/command.h"
#include "backend/probe.h"
#include "checks/checks.h"
#include "core/json.h"
#include "core/seconds_since.h"
#include "lockstep/backend/backend.h"

namespace lockstep {
namespace {

struct SelftestArguments {
  CommonArguments common;
};

const char* const kAdvice =
    "do not trust a training on these devices; report this row with `lockstep doctor --json`";

/// Prints rows as they come, or keeps them for JSON.
class Report {
 public:
  Report(std::string devices, bool as_asked, bool json)
      : devices_(std::move(devices)), json_(json), start_(std::chrono::steady_clock::now()) {
    backend_ = describe_backend();
    if (json_) return;
    fmt::print("devices: {} ({})\nbackend: {}\n\n", devices_,
               as_asked ? "as asked" : "the default; choose with -d", backend_);
    fmt::print("{:<6} {:<11} {:<38} {:>9} {:>9} {:>9}  {}\n", "", "", "", "max abs", "max rel",
               "tolerance", "compared");
  }

  void add(const SelftestCheck& check, const SelftestOutcome& outcome) {
    failed_ += outcome.ok ? 0 : 1;
    const Measured& measured = outcome.measured;
    Json row = {{"group", check.group},
                {"name", check.name},
                {"compared", check.compared},
                {"max_abs_error", json_or_null(measured.absolute)},
                {"max_rel_error", json_or_null(measured.relative)},
                {"tolerance", check.tolerance},
                {"ok", outcome.ok}};
    if (!outcome.ok) row["trouble"] = outcome.trouble, row["advice"] = kAdvice;
    rows_.push_back(row);
    if (json_) return;
    fmt::print("{:<6} {:<11} {:<38} {:>9} {:>9} {:>9}  {}\n", outcome.ok ? "ok" : "FAILED",
               check.group, check.name, text(measured.absolute), text(measured.relative),
               tolerance(check), check.compared);
    if (!outcome.ok) fmt::print("       -> {}; {}\n", outcome.trouble, kAdvice);
    std::fflush(stdout);
  }

  int finish() {
    const double seconds = seconds_since(start_);
    if (json_) {
      const Json root = {{"version", LOCKSTEP_VERSION},
                         {"devices", devices_},
                         {"backend", backend_},
                         {"ok", failed_ == 0},
                         {"failed", failed_},
                         {"seconds", seconds},
                         {"rows", rows_}};
      fmt::print("{}\n", json_text(root, 2));
    } else if (failed_ == 0) {
      fmt::print("\nall {} checks are ok ({:.1f} s)\n", rows_.size(), seconds);
    } else {
      fmt::print("\n{} of {} checks FAILED ({:.1f} s)\n", failed_, rows_.size(), seconds);
    }
    return failed_ == 0 ? kExitDone : kExitFailure;
  }

 private:
  static std::string text(std::optional<double> value) {
    return value ? (*value == 0 ? "0" : fmt::format("{:.1e}", *value)) : "-";
  }
  static std::string tolerance(const SelftestCheck& check) {
    return check.tolerance == 0 ? "exact" : text(check.tolerance);
  }
  std::string describe_backend() const {
    const bool gpus = devices_.starts_with("cuda");
    std::string all;
    for (const Diagnostic& finding : gpus ? probe_cuda() : probe_cpu()) {
      all += (all.empty() ? "" : "; ") + finding.topic + ": " + finding.text;
    }
    return all;
  }

  std::string devices_, backend_;
  bool json_ = false;
  std::chrono::steady_clock::time_point start_;
  Json rows_ = Json::array();
  int failed_ = 0;
};

void declare_selftest(Options& options, SelftestArguments& /*arguments*/) {
  options.add_devices();
  options.add_json();
}

int run_selftest(const SelftestArguments& arguments) {
  const std::string& asked = arguments.common.devices;
  const std::string text = devices_or_default(asked);
  const SelftestDevices devices{parse_devices(text)};
  Report report(text, !asked.empty(), arguments.common.json);
  for (const SelftestCheck& check : selftest_checks(devices)) {
    report.add(check, run_check(check));
  }
  return report.finish();
}

}  // namespace

Command selftest_command() {
  return {.name = "selftest",
          .says = "Check what this build computes on these devices, as one table",
          .page = "selftest",
          .examples = {{"lockstep selftest -d cpu:4", "on four virtual devices, in a few seconds"}},
          .declare = declares(declare_selftest, run_selftest)};
}

}  // namespace lockstep
