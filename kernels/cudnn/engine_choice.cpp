#include "kernels/cudnn/engine_choice.h"

#include <array>
#include <sstream>

#include "lockstep/core/check.h"

namespace lockstep::gpu {
namespace {

constexpr std::array kOrders = {"out_in_taps", "out_taps_in"};  // [WeightOrder]
constexpr std::array kLists = {"heuristic", "fallback"};

}  // namespace

std::string to_string(const EngineChoice& choice) {
  return concat(kOrders[static_cast<std::size_t>(choice.order)], " ", kLists[choice.fallback], " ",
                choice.index);
}

std::optional<EngineChoice> parse_engine(const std::string& text) {
  std::istringstream stream(text);
  std::string order, list;
  std::size_t index = 0;
  stream >> order >> list >> index;
  if (!stream) return std::nullopt;
  for (const WeightOrder known : {WeightOrder::kOutInTaps, WeightOrder::kOutTapsIn}) {
    for (const bool fallback : {false, true}) {
      const EngineChoice choice{known, fallback, index};
      if (to_string(choice) == text) return choice;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::gpu
