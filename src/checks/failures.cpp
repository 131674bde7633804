// Replicas that fail: the others leave their waits, and the error says who failed, and where.

#include <chrono>
#include <thread>

#include "checks/measure.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

/// Until the others wait for the one that fails: then the failure must wake them.
constexpr std::chrono::milliseconds kOthersWait{30};

/// Well below the time after which the watchdog would end the others' waits.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::seconds kStallTimeout{30};

Outputs two_norms(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  return {{"out", net.linear(norm(net, norm(net, x, "first.bn"), "second.bn"), "head", 2)}};
}

/// The error of a training that fails.
std::string failure_of(const std::vector<Device>& devices, std::int64_t samples,
                       const std::function<bool(int rank, const SyncCall& call)>& hook) {
  DataParallelOptions options;
  options.devices = devices;
  options.model = two_norms;
  options.norm = SyncBatchNorm();
  options.input = {8, 3};
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.communicator.stall_timeout = kStallTimeout;
  options.communicator.hook = hook;
  options.backend = {.tf32 = false};
  DataParallel net(options);
  Batch batch;
  batch.images = normal_floats(samples * 3, 1);
  batch.targets["out"] = normal_floats(samples * 2, 2);
  for (std::int64_t n = 0; n < samples; ++n) batch.samples.push_back(n);
  const auto start = std::chrono::steady_clock::now();
  std::string what;
  try {
    net.train_step(batch, 0);
  } catch (const Error& error) {
    what = error.what();
  }
  LOCKSTEP_CHECK(!what.empty(), "expected the training to fail, and it went on");
  LOCKSTEP_CHECK(!net.has_stuck_thread(), "a replica could not be stopped: ", what);
  LOCKSTEP_CHECK(std::chrono::steady_clock::now() - start < kPatience,
                 "the others were not released at once: ", what);
  return what;
}

Measured expect(const std::string& what, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    LOCKSTEP_CHECK(what.find(part) != std::string::npos, "expected an error that says '", part,
                   "', got: ", what);
  }
  return {};
}

bool in_second_layer(const SyncCall& call, Direction direction) {
  return call.direction == direction && std::string(call.layer) == "second.bn";
}

}  // namespace

SelftestChecks failure_checks(const SelftestDevices& devices) {
  const std::vector<Device> four = devices.replicas(4);
  SelftestChecks checks;
  const auto add = [&](const std::string& name, const std::string& compared,
                       std::function<Measured()> run) {
    checks.push_back({"failures", name, compared, 0, std::move(run)});
  };
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const bool forward = direction == Direction::kForward;
    add(concat("a replica throws, ", forward ? "forward" : "backward"),
        "the error names it; the others stop", [four, direction] {
          const auto hook = [direction](int rank, const SyncCall& call) {
            if (rank != 2 || !in_second_layer(call, direction)) return true;
            std::this_thread::sleep_for(kOthersWait);
            throw Error("out of luck");
          };
          return expect(failure_of(four, 8, hook),
                        {"replica 2", to_string(four[2]), "out of luck"});
        });
  }
  add("a replica leaves a BatchNorm call out", "the error names layers and replica", [four] {
    const auto hook = [](int rank, const SyncCall& call) {
      return rank != 1 || call.direction != Direction::kForward ||
             std::string(call.layer) != "first.bn";
    };
    return expect(failure_of(four, 8, hook), {"replica 1", "first.bn", "second.bn"});
  });
  add("one value per channel in all", "the error names the layer", [four] {
    return expect(failure_of(four, 1, nullptr), {"first.bn", "more than one value"});
  });
  return checks;
}

}  // namespace lockstep
