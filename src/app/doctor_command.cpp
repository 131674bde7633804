// lockstep doctor: what the machine offers, and whether a BatchNorm exchange between replicas gives
// the right numbers on it.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>

#include "app/command.h"
#include "backend/probe.h"
#include "core/json.h"
#include "core/seconds_since.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica_group.h"

namespace lockstep {
namespace {

struct DoctorArguments {
  CommonArguments common;
  bool verbose = false;  // with the details
};

constexpr int kReplicas = 4;
constexpr std::int64_t kCheckedRows = 64, kCheckedChannels = 32;
constexpr std::chrono::seconds kSelfTestTime{1};

/// One replica's share of the self-test: x is `rank + c` in channel c and in every row, so that the
/// mean over all ranks of channel c is c + (ranks - 1) / 2.
class SelfTest {
 public:
  SelfTest(const Device& device, Communicator& communicator)
      : backend_(make_backend(device, 1)),
        communicator_(communicator),
        memory_(backend_->allocate((2 * kCheckedRows + 5) * kCheckedChannels * sizeof(float))) {
    communicator.attach(*backend_);
    std::vector<float> values;
    for (std::int64_t i = 0; i < kCheckedRows * kCheckedChannels; ++i) {
      values.push_back(static_cast<float>(communicator.rank() + i % kCheckedChannels));
    }
    backend_->upload(tensor(0), values.data());
    backend_->synchronize();
  }

  /// The largest error of the mean that BatchNorm normalised by.
  double run_once() {
    float* moments = row(0);
    float* saved = row(2);
    backend_->norms().batch_norm_moments(tensor(0), moments, 1);
    const SyncCall call{"doctor", Direction::kForward, 0, kCheckedChannels};
    BatchNormForward forward;
    forward.x = tensor(0);
    forward.y = tensor(1);
    forward.slots = communicator_.all_show(call, {kCheckedRows, moments});
    forward.saved = {saved};
    backend_->norms().batch_norm_forward(forward);
    std::vector<float> mean(kCheckedChannels);
    backend_->download(mean.data(), Tensor(saved, Shape{1, kCheckedChannels}));
    backend_->synchronize();
    double error = 0;
    for (std::int64_t c = 0; c < kCheckedChannels; ++c) {
      const double expected = static_cast<double>(c) + 0.5 * (communicator_.size() - 1);
      error = std::max(error, std::abs(mean[static_cast<std::size_t>(c)] - expected));
    }
    return error;
  }

 private:
  float* base() const { return static_cast<float*>(memory_.data()); }
  Tensor tensor(int index) const {
    return {base() + index * kCheckedRows * kCheckedChannels,
            Shape{kCheckedRows, kCheckedChannels}};
  }
  float* row(int index) const { return base() + (2 * kCheckedRows + index) * kCheckedChannels; }

  std::unique_ptr<Backend> backend_;
  Communicator& communicator_;
  Storage memory_;
};

Diagnostic test_exchange(const std::string& text) {
  const std::string topic = "exchange on " + text;
  try {
    const std::vector<Device> devices = parse_devices(text);
    SyncGroup communicators(devices);
    ReplicaGroup group(devices, communicators);
    std::vector<std::unique_ptr<SelfTest>> tests(devices.size());
    std::vector<double> errors(devices.size());
    group.run([&](int rank) {
      tests[rank] = std::make_unique<SelfTest>(devices[rank], communicators.at(rank));
    });
    const auto start = std::chrono::steady_clock::now();
    int rounds = 0;
    for (; std::chrono::steady_clock::now() - start < kSelfTestTime; ++rounds) {
      group.run([&](int rank) { errors[rank] = std::max(errors[rank], tests[rank]->run_once()); });
    }
    const double seconds = seconds_since(start);
    group.run([&](int rank) { tests[rank].reset(); });
    const double error = *std::max_element(errors.begin(), errors.end());
    if (!(error < 1e-5)) {
      return {false, topic, fmt::format("the global mean is wrong by {:.3g}", error),
              "a fault of the build or the hardware: run tools/check, and report it"};
    }
    return {true, topic,
            fmt::format("{} replicas agree, {:.0f} us per BatchNorm of {} values", devices.size(),
                        1e6 * seconds / rounds, kCheckedRows * kCheckedChannels),
            ""};
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
