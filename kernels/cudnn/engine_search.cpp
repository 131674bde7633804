#include "kernels/cudnn/engine_search.h"

#include <algorithm>
#include <limits>

#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/device.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kScratchAlignment = 256;  // of pieces of scratch memory
constexpr std::size_t kMostEngines = 12;        // tried
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

/// Whether the second order may be the faster one. On tensor cores its engines are those of the
/// first with a reordering in front.
bool second_order_may_win(const ConvProblem& problem) {
  return problem.dtype == DType::kFloat32 && !problem.tf32;
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
  FoundPlan found;  // the last one that was asked for: nobody need ask for it again
  request.usable = [&](const std::string& chosen) {
    const auto choice = parse_engine(chosen);
    return choice && can_run(problem, *choice, found);
  };
  request.rule = [&] {
    found = first_engine(problem, timed);
    return found.name;
  };
  if (timed) request.measure = [&] { return time_engines(problem); };
  const Choice choice = Autotuner::of(choices_).choose(request);
  std::string reason;
  if (found.name != choice.chosen) {
    found = make_chosen(problem, *parse_engine(choice.chosen), reason);
  }
  LOCKSTEP_CHECK(found.cudnn.plan.get() != nullptr, describe(problem), ": ", reason);
  found.milliseconds = choice.milliseconds;
  return found;
}

FoundPlan EngineSearch::make_chosen(const ConvProblem& problem, const EngineChoice& choice,
                                    std::string& reason) {
  for (const bool fallback : {false, true}) {
    for (CudnnDescriptor& engine : find_engines(problem, choice.order, target(), fallback)) {
      if (identify(engine, choice.order) != choice) continue;
      return {to_string(choice), choice.order, make_plan(std::move(engine), reason)};
    }
  }
  reason = concat("cuDNN does not list the engine that was chosen before: ", to_string(choice));
  return {to_string(choice), choice.order, {}};
}

bool EngineSearch::can_run(const ConvProblem& problem, const EngineChoice& choice,
                           FoundPlan& found) {
  std::string ignored;
  found = make_chosen(problem, choice, ignored);
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

/// Those of the last resort are looked at where no other works.
void EngineSearch::for_each_engine(const ConvProblem& problem, const Attempt& attempt) {
  Trials trials;
  for (const bool fallback : {false, true}) {
    for (const WeightOrder order : weight_orders(problem.geometry)) {
      if (trials.enough || (trials.works && !second_order_may_win(problem))) break;
      try_list(problem, order, fallback, attempt, trials);
    }
    if (trials.works) break;
  }
  note_rejections(problem, trials);
  LOCKSTEP_CHECK(trials.works, model_, " has no engine for ", describe(problem), " (",
                 trials.reason, ")");
}

void EngineSearch::try_list(const ConvProblem& problem, WeightOrder order, bool fallback,
                            const Attempt& attempt, Trials& trials) {
  std::size_t left = second_order_may_win(problem) ? kMostEngines / 2 : kMostEngines;
  for (CudnnDescriptor& engine : find_engines(problem, order, target(), fallback)) {
    if (trials.enough || left-- == 0) return;
    FoundPlan plan{to_string(identify(engine, order)), order};
    plan.cudnn = make_plan(std::move(engine), trials.reason);
    if (plan.cudnn.plan.get() == nullptr) continue;
    if (plan.cudnn.workspace > most_workspace_) {
      trials.reason = concat("it asks for ", plan.cudnn.workspace, " bytes of workspace");
      trials.least_rejected = std::min(trials.least_rejected, plan.cudnn.workspace);
      ++trials.rejected;
      continue;
    }
    try {
      trials.enough = attempt(plan);
      trials.works = true;
    } catch (const Error& error) {
      trials.reason = error.what();  // an engine that fails is not taken; the next may do
    }
  }
}

/// The first that works, cuDNN's most promising. Not run where it need not be `tried`: nothing is
/// allocated then.
FoundPlan EngineSearch::first_engine(const ConvProblem& problem, bool tried) {
  const Operands operands = tried ? make_operands(problem) : Operands{};
  FoundPlan first;
  for_each_engine(problem, [&](FoundPlan& plan) {
    if (operands.tensors.front() != nullptr) run_once(plan.cudnn, operands);
    first = std::move(plan);
    return true;
  });
  return first;
}

Measurement EngineSearch::time_engines(const ConvProblem& problem) {
  const Operands operands = make_operands(problem);
  if (operands.tensors.front() == nullptr) return {first_engine(problem, false).name, {}};
  Measurement measured;
  float shortest = std::numeric_limits<float>::infinity();
  for_each_engine(problem, [&](FoundPlan& plan) {
    const float time = milliseconds(plan.cudnn, operands, shortest);
    measured.milliseconds.emplace_back(plan.name, time);
    if (time < kClearlyFaster * shortest) {
      shortest = time;
      measured.fastest = plan.name;
    }
    return false;
  });
  return measured;
}

void EngineSearch::note_rejections(const ConvProblem& problem, const Trials& trials) {
  if (trials.rejected == 0) return;
  rejections_.push_back(concat(describe(problem), ": ", trials.rejected,
                               " of cuDNN's first engines rejected for workspace: the least asks ",
                               "for ", trials.least_rejected >> 20, " MiB, and may have ",
                               most_workspace_ >> 20));
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
