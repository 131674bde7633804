#include "kernels/cudnn/cudnn_convolution.h"

#include <algorithm>
#include <limits>

#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/device.h"
#include "kernels/operations/pointwise.h"
#include "kernels/operations/weights.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kAlignment = 256;        // of pieces of scratch memory
constexpr std::size_t kMostEngines = 6;        // timed per order of the weights
constexpr std::size_t kMostBindings = 16;      // per plan: layers of one geometry share it
constexpr int kRounds = 3, kRunsPerRound = 2;  // of timing
// An engine must be faster than an earlier one by more than this to be preferred: cuDNN lists the
// most promising first, and the noise of the clock is not to decide.
constexpr float kClearlyFaster = 0.95F;

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kCudnnAlignment == 0;
}

/// Whether cuDNN can take the tensor as it lies: plans are made for dense, aligned ones.
bool usable(const Tensor& tensor) { return tensor.dense() && aligned(tensor.data); }

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::size_t bytes_of(const Shape& shape, DType dtype) {
  return padded(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
}

/// Of the weights in the type of a plan.
std::size_t weight_bytes(const ConvProblem& problem) {
  return padded(static_cast<std::size_t>(problem.geometry.weight_elements()) *
                size_of(problem.dtype));
}

Tensor flat(const void* data, std::int64_t elements, DType dtype) {
  return {const_cast<void*>(data), Shape{1, elements}, dtype};  // read only where it is an input
}

/// Hands out aligned pieces of the scratch memory in order.
class Pieces {
 public:
  explicit Pieces(void* base) : next_(static_cast<std::byte*>(base)) {}

  void* take(std::size_t bytes) {
    std::byte* piece = next_;
    next_ += padded(bytes);
    return piece;
  }

 private:
  std::byte* next_;
};

/// Orders of the weights that differ in memory.
std::vector<WeightOrder> weight_orders(const ConvGeometry& g) {
  if (g.in_channels == g.groups || g.kernel_h * g.kernel_w == 1) return {WeightOrder::kOutInTaps};
  return {WeightOrder::kOutInTaps, WeightOrder::kOutTapsIn};
}

std::string describe(const ConvProblem& problem) {
  const ConvGeometry& g = problem.geometry;
  return concat("the ", to_string(problem.pass), " pass of a convolution with weights ",
                to_string(g.weight_shape()), ", stride ", g.stride_h, "x", g.stride_w, ", padding ",
                g.padding_h, "x", g.padding_w, ", dilation ", g.dilation_h, "x", g.dilation_w, ", ",
                g.groups, " groups, input ", to_string(problem.input), " in ",
                to_string(problem.dtype), problem.tf32 ? " with TF32" : "");
}

}  // namespace

CudnnConvolutions::CudnnConvolutions(int ordinal, const Context& context, ConvolutionMemory memory,
                                     const ConvolutionOptions& options)
    : ordinal_(ordinal),
      context_(context),
      memory_(std::move(memory)),
      options_(options),
      model_(concat(to_string(describe_device(ordinal)), ", cuDNN ", cudnnGetVersion())) {
  const DeviceGuard guard(ordinal);
  cudnnHandle_t handle = nullptr;
  check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  handle_.reset(handle);
  check_cudnn(cudnnSetStream(handle, context.stream), "cudnnSetStream");
}

CudnnConvolutions::~CudnnConvolutions() = default;

// --- the passes ---

ConvProblem CudnnConvolutions::problem(const ConvGeometry& geometry, const Shape& input,
                                       DType dtype, ConvPass pass) const {
  return {geometry, input, pass, dtype, options_.tf32 && dtype == DType::kFloat32};
}

void CudnnConvolutions::prepare(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                bool backward, bool grad_input) {
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (backward && grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    const Plan& plan = plan_for(problem(geometry, input, dtype, pass));
    memory_.scratch(padded(plan.cudnn.workspace) + weight_bytes(plan.problem));
  }
}

void CudnnConvolutions::forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const Tensor& y) {
  Plan& plan = plan_for(problem(geometry, x.shape, x.dtype, ConvPass::kForward));
  run(plan, {x, y, const_cast<float*>(weight)}, nullptr);
}

void CudnnConvolutions::backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                      const float* weight, const Tensor& grad_x) {
  Plan& plan = plan_for(problem(geometry, grad_x.shape, grad_x.dtype, ConvPass::kBackwardData));
  run(plan, {grad_x, grad_y, const_cast<float*>(weight)}, nullptr);
}

void CudnnConvolutions::backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                         const Tensor& grad_y, float* grad_weight) {
  Plan& plan = plan_for(problem(geometry, x.shape, x.dtype, ConvPass::kBackwardWeights));
  run(plan, {x, grad_y, grad_weight}, nullptr);
}

// --- running a plan ---

/// `scratch`: null for that of the run.
void CudnnConvolutions::run(Plan& plan, const Operands& operands, void* scratch) {
  const ConvPass pass = plan.problem.pass;
  const auto& [x, y, weight] = operands;
  const DType dtype = plan.problem.dtype;
  const std::size_t x_bytes = usable(x) ? 0 : bytes_of(x.shape, dtype);
  const std::size_t y_bytes = usable(y) ? 0 : bytes_of(y.shape, dtype);
  const bool own_x = x_bytes != 0, own_y = y_bytes != 0;
  const bool own_weight = pass == ConvPass::kBackwardWeights || dtype != DType::kFloat32 ||
                          plan.order == WeightOrder::kOutTapsIn || !aligned(weight);
  const std::size_t w_bytes = own_weight ? weight_bytes(plan.problem) : 0;
  if (scratch == nullptr) {
    scratch = memory_.scratch(padded(plan.cudnn.workspace) + w_bytes + x_bytes + y_bytes);
  }
  Pieces pieces(scratch);
  void* workspace = pieces.take(plan.cudnn.workspace);
  void* w = own_weight ? pieces.take(w_bytes) : weight;
  const Tensor dense_x = own_x ? Tensor(pieces.take(x_bytes), x.shape, dtype) : x;
  const Tensor dense_y = own_y ? Tensor(pieces.take(y_bytes), y.shape, dtype) : y;

  if (own_x && pass != ConvPass::kBackwardData) gpu::copy(context_, x, dense_x, false);
  if (own_y && pass != ConvPass::kForward) gpu::copy(context_, y, dense_y, false);
  if (own_weight && pass != ConvPass::kBackwardWeights) take_weight(plan, weight, w);
  execute(plan, {dense_x.data, dense_y.data, w, workspace});
  if (own_x && pass == ConvPass::kBackwardData) gpu::copy(context_, dense_x, x, false);
  if (own_y && pass == ConvPass::kForward) gpu::copy(context_, dense_y, y, false);
  if (pass == ConvPass::kBackwardWeights) add_weight_gradient(plan, w, weight);
}

void CudnnConvolutions::take_weight(const Plan& plan, const float* from, void* to) {
  const ConvGeometry& g = plan.problem.geometry;
  const Tensor master = flat(from, g.weight_elements(), DType::kFloat32);
  const Tensor taken = flat(to, g.weight_elements(), plan.problem.dtype);
  if (plan.order == WeightOrder::kOutInTaps) return gpu::copy(context_, master, taken, false);
  const Matrices in_by_taps{g.out_channels, g.in_channels / g.groups, g.kernel_h * g.kernel_w};
  transpose(context_, in_by_taps, master, taken, false);
}

void CudnnConvolutions::add_weight_gradient(const Plan& plan, const void* from, float* to) {
  const ConvGeometry& g = plan.problem.geometry;
  const Tensor computed = flat(from, g.weight_elements(), plan.problem.dtype);
  const Tensor master = flat(to, g.weight_elements(), DType::kFloat32);
  if (plan.order == WeightOrder::kOutInTaps) return gpu::copy(context_, computed, master, true);
  const Matrices taps_by_in{g.out_channels, g.kernel_h * g.kernel_w, g.in_channels / g.groups};
  transpose(context_, taps_by_in, computed, master, true);
}

// A variant pack cannot be changed once it is finalized, and making one allocates host memory:
// those of the last addresses are kept.
void CudnnConvolutions::execute(Plan& plan, const std::array<void*, 4>& addresses) {
  std::vector<Binding>& bindings = plan.bindings;
  auto binding = std::find_if(bindings.begin(), bindings.end(), [&](const Binding& candidate) {
    return candidate.addresses == addresses;
  });
  if (binding == bindings.end()) {
    const std::span<void* const> tensors(addresses.data(), 3);
    Binding made{addresses, make_variant_pack(tensors, addresses[3])};
    if (bindings.size() < kMostBindings) {
      binding = bindings.insert(bindings.end(), std::move(made));
    } else {
      binding = bindings.begin() + static_cast<std::ptrdiff_t>(plan.next_binding);
      *binding = std::move(made);
      plan.next_binding = (plan.next_binding + 1) % kMostBindings;
    }
  }
  check_cudnn(cudnnBackendExecute(handle_.get(), plan.cudnn.plan.get(), binding->pack.get()),
              "cudnnBackendExecute");
}

// --- choosing a plan ---

CudnnConvolutions::Plan& CudnnConvolutions::plan_for(const ConvProblem& problem) {
  for (const auto& plan : plans_) {
    if (plan->problem == problem) return *plan;
  }
  problem.geometry.check();
  std::string reason;
  Plan plan = make_chosen(problem, choose(problem), reason);
  LOCKSTEP_CHECK(plan.cudnn.plan.get() != nullptr, describe(problem), ": ", reason);
  plans_.push_back(std::make_unique<Plan>(std::move(plan)));
  return *plans_.back();
}

/// With a null plan when the engine is not there or does not take the problem; `reason` says why.
CudnnConvolutions::Plan CudnnConvolutions::make_chosen(const ConvProblem& problem,
                                                       const EngineChoice& choice,
                                                       std::string& reason) {
  auto engines = find_engines(problem, choice.order, target(), choice.fallback, kMostEngines);
  if (choice.index >= engines.size()) {
    reason = concat("cuDNN lists ", engines.size(), " engines, but number ", choice.index,
                    " was chosen before");
    return {problem, choice.order, {}, {}, 0};
  }
  return {problem, choice.order, make_plan(std::move(engines[choice.index]), reason), {}, 0};
}

EngineChoice CudnnConvolutions::choose(const ConvProblem& problem) {
  ChoiceRequest request;
  request.machine = model_;
  request.problem =
      concat(describe(problem), ", at most ", options_.most_workspace, " bytes of workspace");
  request.usable = [&](const std::string& chosen) {
    const auto choice = parse_engine(chosen);
    return choice && can_run(problem, *choice);
  };
  request.rule = [&] { return try_engines(problem, false).fastest; };
  request.measure = [&] { return try_engines(problem, true); };
  return *parse_engine(Autotuner::of(options_.choices).choose(request));
}

bool CudnnConvolutions::can_run(const ConvProblem& problem, const EngineChoice& choice) {
  std::string ignored;
  const Plan plan = make_chosen(problem, choice, ignored);
  return plan.cudnn.plan.get() != nullptr && plan.cudnn.workspace <= options_.most_workspace;
}

/// The fastest engine, or without a clock the first one that works, cuDNN's most promising.
Measurement CudnnConvolutions::try_engines(const ConvProblem& problem, bool by_time) {
  std::string reason = "none is deterministic";
  Measurement measured = try_engines(problem, by_time, false, reason);
  if (measured.fastest.empty()) measured = try_engines(problem, by_time, true, reason);
  LOCKSTEP_CHECK(!measured.fastest.empty(), model_, " has no engine for ", describe(problem), " (",
                 reason, ")");
  return measured;
}

/// Nothing is the fastest when there is none; `reason` then says why, if anything is known.
Measurement CudnnConvolutions::try_engines(const ConvProblem& problem, bool by_time, bool fallback,
                                           std::string& reason) {
  const Shape output = problem.geometry.output_shape(problem.input);
  const DType dtype = problem.dtype;
  const Storage x = memory_.allocate(bytes_of(problem.input, dtype));
  const Storage y = memory_.allocate(bytes_of(output, dtype));
  const Storage weight =
      memory_.allocate(bytes_of(problem.geometry.weight_shape(), DType::kFloat32));
  const Operands operands{Tensor(x.data(), problem.input, dtype), Tensor(y.data(), output, dtype),
                          static_cast<float*>(weight.data())};
  Measurement measured;
  float least = std::numeric_limits<float>::infinity();
  for (const WeightOrder order : weight_orders(problem.geometry)) {
    auto engines = find_engines(problem, order, target(), fallback, kMostEngines);
    for (std::size_t i = 0; i < engines.size(); ++i) {
      Plan plan{problem, order, make_plan(std::move(engines[i]), reason), {}, 0};
      if (plan.cudnn.plan.get() == nullptr) continue;
      if (plan.cudnn.workspace > options_.most_workspace) {
        reason = concat("it asks for ", plan.cudnn.workspace, " bytes of workspace");
        continue;
      }
      const std::string name = to_string(EngineChoice{order, fallback, i});
      try {
        const float time = milliseconds(plan, operands);
        measured.milliseconds.emplace_back(name, time);
        if (time < kClearlyFaster * least) {
          least = time;
          measured.fastest = name;
        }
        if (!by_time) return measured;
      } catch (const Error& error) {
        reason = error.what();  // an engine that fails is not taken; the next may do
      }
    }
  }
  return measured;
}

/// Of a whole pass, with what is done to the weights.
float CudnnConvolutions::milliseconds(Plan& plan, const Operands& operands) {
  const Storage scratch =
      memory_.allocate(padded(plan.cudnn.workspace) + weight_bytes(plan.problem));
  Event begin(ordinal_, Event::Kind::kTime), end(ordinal_, Event::Kind::kTime);
  run(plan, operands, scratch.data());  // the first run loads the kernels
  float least = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    begin.record(context_.stream);
    for (int i = 0; i < kRunsPerRound; ++i) run(plan, operands, scratch.data());
    end.record(context_.stream);
    end.synchronize();
    least = std::min(least, begin.milliseconds_until(end) / kRunsPerRound);
  }
  return least;
}

}  // namespace lockstep::gpu
