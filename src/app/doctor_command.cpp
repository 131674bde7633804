// lockstep doctor: what the machine offers, and whether a BatchNorm exchange between replicas gives
// the right numbers on it.

#include <fmt/format.h>

#include <cstdio>
#include <functional>

#include "app/command.h"
#include "backend/probe.h"
#include "checks/checks.h"
#include "core/json.h"
#include "lockstep/backend/backend.h"

namespace lockstep {
namespace {

struct DoctorArguments {
  CommonArguments common;
  bool verbose = false;  // with the details
};

constexpr int kReplicas = 4;

Diagnostic test_exchange(const std::string& text) {
  const std::string topic = "exchange on " + text;
  try {
    const SelftestDevices devices{parse_devices(text)};
    for (const SelftestCheck& check : batch_norm_checks(devices)) {
      if (check.group != "exchange") continue;
      const SelftestOutcome outcome = run_check(check);
      if (outcome.ok) continue;
      return {false, topic, check.name + ": " + outcome.trouble,
              "a fault of the build or the hardware: run tools/check, and report it"};
    }
    return {true, topic, fmt::format("{} replicas agree", devices.several().size()), ""};
  } catch (const std::exception& error) {
    return {false, topic, error.what(), "run tools/check, and report what it says"};
  }
}

/// Calls `found` with each finding as soon as it is there: a device that hangs hides no other.
void examine(const std::function<void(const Diagnostic&)>& found) {
  for (const Diagnostic& finding : probe_cpu()) found(finding);
  found(test_exchange(fmt::format("cpu:{}", kReplicas)));
  for (const Diagnostic& finding : probe_cuda()) found(finding);
  if (cuda_device_count() > 0) found(test_exchange(fmt::format("cuda:0x{}", kReplicas)));
  if (cuda_device_count() > 1) found(test_exchange("cuda:all"));
}

void declare_doctor(Options& options, DoctorArguments& arguments) {
  options.add_flag("--verbose,-v", arguments.verbose,
                   "also which implementation computes each convolution");
  options.add_json();
}

void print(const Diagnostic& finding, bool verbose) {
  fmt::print("{} {:<22} {}\n", finding.good ? "ok  " : "FIX ", finding.topic, finding.text);
  if (!finding.advice.empty()) fmt::print("     {:<22} -> {}\n", "", finding.advice);
  if (verbose) {
    for (const std::string& detail : finding.details) fmt::print("     {:<22} {}\n", "", detail);
  }
  std::fflush(stdout);
}

int run_doctor(const DoctorArguments& arguments) {
  bool good = true;
  Json json = Json::array();
  examine([&](const Diagnostic& finding) {
    good = good && finding.good;
    json.push_back({{"good", finding.good},
                    {"topic", finding.topic},
                    {"text", finding.text},
                    {"advice", finding.advice},
                    {"details", finding.details}});
    if (!arguments.common.json) print(finding, arguments.verbose);
  });
  if (arguments.common.json) fmt::print("{}\n", json_text(json, 2));
  return good ? kExitDone : kExitFailure;
}

}  // namespace

Command doctor_command() {
  return {.name = "doctor",
          .says = "Examine the machine and this build, and test an exchange on it",
          .page = "gpu",
          .examples = {{"lockstep doctor", "what is here, and what to do about each problem"},
                       {"lockstep doctor --verbose --json", "the same with details, for a script"}},
          .declare = declares(declare_doctor, run_doctor)};
}

}  // namespace lockstep
