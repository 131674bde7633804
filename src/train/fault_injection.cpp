#include "train/fault_injection.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMaxRanks = 256;

const std::map<std::string, std::vector<std::string>> kFaults{
    {"throw", {"rank", "step", "call"}},
    {"sleep", {"rank", "step", "call", "seconds"}},
    {"skip", {"rank", "step", "call"}},
    {"delay", {"seed", "max_us"}},
    {"evaluation", {"step"}}};

[[noreturn]] void reject(const std::string& text, const std::string& why) {
  throw ConfigError(
      concat("LOCKSTEP_FAULT=", text, ": ", why,
             "; expected throw:rank=R,step=S[,call=C], sleep:rank=R,step=S,seconds=T[,call=C], "
             "skip:rank=R,step=S[,call=C], delay:seed=N,max_us=T or evaluation:step=S"));
}

}  // namespace

struct FaultInjection::Shared {
  /// Calls of one rank in the present step; touched by its thread alone.
  struct Position {
    std::int64_t step = -1;
    int calls = 0;
  };

  std::string kind;
  std::map<std::string, std::int64_t> values;
  std::atomic<std::int64_t> step{-1};
  std::vector<Position> positions = std::vector<Position>(kMaxRanks);

  std::int64_t value(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? 0 : found->second;
  }
  bool operator()(int rank);
  void delay(int rank, int call) const;
};

void FaultInjection::Shared::delay(int rank, int call) const {
  const auto index = (static_cast<std::uint64_t>(rank) << 32) | static_cast<std::uint32_t>(call);
  Rng rng(static_cast<std::uint64_t>(value("seed")), RngPurpose::kDelay, index,
          static_cast<std::uint32_t>(step.load()));
  const auto bound = static_cast<std::uint32_t>(value("max_us")) + 1;
  std::this_thread::sleep_for(std::chrono::microseconds(rng.below(bound)));
}

bool FaultInjection::Shared::operator()(int rank) {
  if (kind == "evaluation") return true;
  Position& position = positions[static_cast<std::size_t>(rank % kMaxRanks)];
  const std::int64_t now = step.load();
  if (position.step != now) position = {now, 0};
  const int call = position.calls++;
  if (kind == "delay") {
    delay(rank, call);
    return true;
  }
  if (rank != value("rank") || now != value("step") || call != value("call")) return true;
  if (kind == "throw") throw Error(concat("injected failure in step ", now, ", call ", call));
  if (kind == "sleep") std::this_thread::sleep_for(std::chrono::seconds(value("seconds")));
  return kind != "skip";
}

FaultInjection::FaultInjection(const std::string& text) {
  if (text.empty()) return;
  shared_ = std::make_shared<Shared>();
  const std::size_t colon = text.find(':');
  shared_->kind = text.substr(0, colon);
  const auto known = kFaults.find(shared_->kind);
  if (known == kFaults.end()) reject(text, "no fault `" + shared_->kind + "`");
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    if (std::find(known->second.begin(), known->second.end(), name) == known->second.end()) {
      reject(text, "`" + shared_->kind + "` has no `" + name + "`");
    }
    const std::string digits = equals == std::string::npos ? "" : item.substr(equals + 1);
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) {
      reject(text, "`" + name + "` needs a number");
    }
    shared_->values[name] = value;
  }
}

void FaultInjection::set_step(std::int64_t step) {
  if (shared_) shared_->step = step;
}

void FaultInjection::strike_evaluation(std::int64_t steps) const {
  if (!shared_ || shared_->kind != "evaluation" || shared_->value("step") != steps) return;
  throw Error(concat("injected failure in the evaluation after ", steps, " steps"));
}

std::function<bool(int, const SyncCall&)> FaultInjection::hook() const {
  if (!shared_) return nullptr;
  return [shared = shared_](int rank, const SyncCall&) { return (*shared)(rank); };
}

}  // namespace lockstep
