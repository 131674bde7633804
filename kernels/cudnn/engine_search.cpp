#include "kernels/cudnn/engine_search.h"

#include <algorithm>
#include <limits>

#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/device.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kScratchAlignment = 256;  // of pieces of scratch memory
constexpr std::size_t kMostEngines = 6;         // tried per order of the weights
constexpr int kRounds = 9, kRunsPerRound = 2;   // of timing
// An engine must be faster than an earlier one by more than this to be preferred: cuDNN lists the
// most promising first, and the noise of the clock is not to decide.
constexpr float kClearlyFaster = 0.98F;
constexpr float kHopeless = 2;  // times the fastest one's: no need to know it better

/// Those to try, the preferred one first. cuDNN's engines for channels-last activations want the
/// weights channels-last, too: a plan for another order reorders them in every call.
std::vector<WeightOrder> weight_orders(const ConvGeometry& g) {
  const bool alike = g.in_channels == g.groups || g.kernel_h * g.kernel_w == 1;
  if (alike) return {WeightOrder::kOutTapsIn};
  return {WeightOrder::kOutTapsIn, WeightOrder::kOutInTaps};
}

}  // namespace

std::size_t padded(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::size_t bytes_of(const Shape& shape, DType dtype) {
  return padded(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
}

std::size_t weight_bytes(const ConvProblem& problem) {
  return padded(static_cast<std::size_t>(problem.geometry.weight_elements()) *
                size_of(problem.dtype));
}

std::string describe(const ConvProblem& problem) {
  return concat("the ", to_string(problem.pass), " pass of a ", to_string(problem.geometry),
                ", input ", to_string(problem.input), " in ", to_string(problem.dtype),
                problem.tf32 ? " with TF32" : "");
}

EngineSearch::EngineSearch(int ordinal, cudnnHandle_t handle, const Context& context,
                           Allocate allocate, std::filesystem::path choices)
    : ordinal_(ordinal),
      handle_(handle),
      context_(context),
      allocate_(std::move(allocate)),
      choices_(std::move(choices)),
      model_(concat(to_string(describe_device(ordinal)), ", cuDNN ", cudnnGetVersion())),
      most_workspace_(most_workspace(describe_device(ordinal).bytes)) {}

FoundPlan EngineSearch::find(const ConvProblem& problem, bool timed) {
  problem.geometry.check();
  ChoiceRequest request;
  request.machine = model_;
  request.problem =
      concat(describe(problem), ", at most ", most_workspace_ >> 20, " MiB of workspace");
  request.usable = [&](const std::string& chosen) {
    const auto choice = parse_engine(chosen);
    return choice && can_run(problem, *choice);
  };
  request.rule = [&] { return try_engines(problem, false).fastest; };
  if (timed) request.measure = [&] { return try_engines(problem, true); };
  const Choice choice = Autotuner::of(choices_).choose(request);
  std::string reason;
  FoundPlan found = make_chosen(problem, *parse_engine(choice.chosen), reason);
  LOCKSTEP_CHECK(found.cudnn.plan.get() != nullptr, describe(problem), ": ", reason);
  found.milliseconds = choice.milliseconds;
  return found;
}

FoundPlan EngineSearch::make_chosen(const ConvProblem& problem, const EngineChoice& choice,
                                    std::string& reason) {
  for (const bool fallback : {false, true}) {
    for (CudnnDescriptor& engine : find_engines(problem, choice.order, target(), fallback)) {
      if (identify(engine, choice.order) != choice) continue;
      return {choice.order, make_plan(std::move(engine), reason)};
    }
  }
  reason = concat("cuDNN does not list the engine that was chosen before: ", to_string(choice));
  return {choice.order, {}};
}

bool EngineSearch::can_run(const ConvProblem& problem, const EngineChoice& choice) {
  std::string ignored;
  const FoundPlan found = make_chosen(problem, choice, ignored);
  return found.cudnn.plan.get() != nullptr && found.cudnn.workspace <= most_workspace_;
}

/// Random: on zeros a GPU draws less power, and clocks higher. A network that fits may leave no
/// room for them: nothing is tried then, and cuDNN's order decides.
EngineSearch::Operands EngineSearch::make_operands(const ConvProblem& problem) {
  const std::array<std::int64_t, 3> elements{
      problem.input.elements(), problem.geometry.output_shape(problem.input).elements(),
      problem.geometry.weight_elements()};
  Operands made;
  try {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(elements[i]) * size_of(problem.dtype);
      made.storage[i] = allocate_(padded(bytes));
    }
  } catch (const Error&) {
    return {};
  }
  for (std::size_t i = 0; i < elements.size(); ++i) {
    made.tensors[i] = made.storage[i].data();
    fill_random(context_, {made.tensors[i], Shape{1, elements[i]}, problem.dtype}, i);
  }
  return made;
}

/// The fastest engine, or without a clock the first one that works, cuDNN's most promising.
Measurement EngineSearch::try_engines(const ConvProblem& problem, bool by_time) {
  std::string reason = "none is deterministic";
  Measurement measured = try_engines(problem, by_time, false, reason);
  if (measured.fastest.empty()) measured = try_engines(problem, by_time, true, reason);
  LOCKSTEP_CHECK(!measured.fastest.empty(), model_, " has no engine for ", describe(problem), " (",
                 reason, ")");
  return measured;
}

/// Nothing is the fastest when there is none; `reason` then says why, if anything is known.
Measurement EngineSearch::try_engines(const ConvProblem& problem, bool by_time, bool fallback,
                                      std::string& reason) {
  const Operands operands = make_operands(problem);
  const bool can_try = operands.tensors.front() != nullptr;
  Measurement measured;
  float shortest = std::numeric_limits<float>::infinity();
  int rejected = 0;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const WeightOrder order : weight_orders(problem.geometry)) {
    auto engines = find_engines(problem, order, target(), fallback);
    if (engines.size() > kMostEngines) engines.resize(kMostEngines);
    for (CudnnDescriptor& engine : engines) {
      const std::string name = to_string(identify(engine, order));
      const CudnnPlan plan = make_plan(std::move(engine), reason);
      if (plan.plan.get() == nullptr) continue;
      if (plan.workspace > most_workspace_) {
        reason = concat("it asks for ", plan.workspace, " bytes of workspace");
        least = std::min(least, plan.workspace);
        ++rejected;
        continue;
      }
      try {
        if (!by_time || !can_try) {
          if (can_try) run_once(plan, operands);
          measured.fastest = name;
          note_rejections(problem, rejected, least);
          return measured;
        }
        const float time = milliseconds(plan, operands, shortest);
        measured.milliseconds.emplace_back(name, time);
        if (time < kClearlyFaster * shortest) {
          shortest = time;
          measured.fastest = name;
        }
      } catch (const Error& error) {
        reason = error.what();  // an engine that fails is not taken; the next may do
      }
    }
  }
  note_rejections(problem, rejected, least);
  return measured;
}

void EngineSearch::note_rejections(const ConvProblem& problem, int count, std::size_t least) {
  if (count == 0) return;
  rejections_.push_back(concat(describe(problem), ": ", count,
                               " of cuDNN's first engines rejected for workspace: the least asks ",
                               "for ", least >> 20, " MiB, and may have ", most_workspace_ >> 20));
}

void EngineSearch::run(const CudnnPlan& plan, const CudnnDescriptor& pack) {
  check_cudnn(cudnnBackendExecute(handle_, plan.plan.get(), pack.get()), "cudnnBackendExecute");
}

/// Throws what the engine says; the plan's memory is free again afterwards.
void EngineSearch::run_once(const CudnnPlan& plan, const Operands& operands) {
  const Storage workspace = allocate_(padded(plan.workspace));
  run(plan, make_variant_pack(operands.tensors, workspace.data()));
  Event end(ordinal_, Event::Kind::kTime);
  end.record(context_.stream);
  end.synchronize();
}

/// The median of a run. Ends early when it is hopeless beside `least`.
float EngineSearch::milliseconds(const CudnnPlan& plan, const Operands& operands, float least) {
  const Storage workspace = allocate_(padded(plan.workspace));
  const CudnnDescriptor pack = make_variant_pack(operands.tensors, workspace.data());
  Event begin(ordinal_, Event::Kind::kTime), end(ordinal_, Event::Kind::kTime);
  run(plan, pack);  // the first run loads the kernels
  std::array<float, kRounds> times{};
  for (float& time : times) {
    begin.record(context_.stream);
    for (int i = 0; i < kRunsPerRound; ++i) run(plan, pack);
    end.record(context_.stream);
    end.synchronize();
    time = begin.milliseconds_until(end) / kRunsPerRound;
    if (time > kHopeless * least) return time;
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace lockstep::gpu
