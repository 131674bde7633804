#include "kernels/cudnn/cudnn_convolution.h"

#include <algorithm>
#include <limits>

#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/device.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kScratchAlignment = 256;  // of pieces of scratch memory
constexpr std::size_t kMostEngines = 6;         // timed per order of the weights
constexpr std::size_t kMostBindings = 16;       // per plan: layers of one geometry share it
constexpr int kRounds = 9, kRunsPerRound = 2;   // of timing
// An engine must be faster than an earlier one by more than this to be preferred: cuDNN lists the
// most promising first, and the noise of the clock is not to decide.
constexpr float kClearlyFaster = 0.98F;
constexpr float kHopeless = 2;  // times the fastest one's: no need to know it better

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kCudnnAlignment == 0;
}

/// Whether cuDNN can take the tensor as it lies: plans are made for dense, aligned ones.
bool usable(const Tensor& tensor) { return tensor.dense() && aligned(tensor.data); }

std::size_t padded(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

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

/// What turns PyTorch's weights, [batch, rows, columns], into those of `order`.
Matrices transposition_to(WeightOrder order, const ConvGeometry& g) {
  const std::int64_t in = g.in_channels / g.groups, taps = g.kernel_h * g.kernel_w;
  if (order == WeightOrder::kOutTapsIn && in > 1 && taps > 1) return {g.out_channels, in, taps};
  return {1, g.weight_elements(), 1};
}

bool is_in_place(const Matrices& transposition) { return transposition.columns == 1; }

/// Those to try, the preferred one first. cuDNN's engines for channels-last activations want the
/// weights channels-last, too: a plan for another order reorders them in every call.
std::vector<WeightOrder> weight_orders(const ConvGeometry& g) {
  if (is_in_place(transposition_to(WeightOrder::kOutTapsIn, g))) return {WeightOrder::kOutTapsIn};
  return {WeightOrder::kOutTapsIn, WeightOrder::kOutInTaps};
}

/// Whether a plan's weights differ from the fp32 ones in PyTorch's order.
bool wants_packed(const ConvProblem& problem, WeightOrder order) {
  return problem.dtype != DType::kFloat32 ||
         !is_in_place(transposition_to(order, problem.geometry));
}

bool operator==(const Matrices& a, const Matrices& b) {
  return a.batch == b.batch && a.rows == b.rows && a.columns == b.columns;
}

std::string describe(const ConvProblem& problem) {
  return concat("the ", to_string(problem.pass), " pass of a ", to_string(problem.geometry),
                ", input ", to_string(problem.input), " in ", to_string(problem.dtype),
                problem.tf32 ? " with TF32" : "");
}

}  // namespace

CudnnConvolutions::CudnnConvolutions(int ordinal, const Context& context, ConvolutionMemory memory,
                                     const ConvolutionOptions& options)
    : ordinal_(ordinal),
      context_(context),
      memory_(std::move(memory)),
      options_(options),
      model_(concat(to_string(describe_device(ordinal)), ", cuDNN ", cudnnGetVersion())),
      handle_(nullptr, DestroyHandle{ordinal}) {
  const DeviceGuard guard(ordinal);
  cudnnHandle_t handle = nullptr;
  check_cudnn(cudnnCreate(&handle), "cudnnCreate");
  handle_.reset(handle);
  check_cudnn(cudnnSetStream(handle, context.stream), "cudnnSetStream");
}

CudnnConvolutions::~CudnnConvolutions() = default;

void CudnnConvolutions::DestroyHandle::operator()(cudnnContext* handle) const {
  try {
    const DeviceGuard guard(ordinal);
    cudnnDestroy(handle);
  } catch (const Error&) {
    cudnnDestroy(handle);  // the device is lost: there is nothing better to do
  }
}

// --- the passes ---

ConvProblem CudnnConvolutions::problem(const ConvGeometry& geometry, const Shape& input,
                                       DType dtype, ConvPass pass) const {
  const Shape images = options_.by_image ? input.with_batch(1) : input;
  return {geometry, images, pass, dtype, options_.tf32 && dtype == DType::kFloat32};
}

void CudnnConvolutions::prepare(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                bool backward, bool grad_input) {
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (backward && grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    Plan& plan = plan_for(problem(geometry, input, dtype, pass));
    plan.runs = std::max(plan.runs, input.batch() / plan.problem.input.batch());
    memory_.scratch(padded(plan.cudnn.workspace) + weight_bytes(plan.problem));
  }
}

void CudnnConvolutions::forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const Tensor& y) {
  Plan& plan = plan_for(problem(geometry, x.shape, x.dtype, ConvPass::kForward));
  run(plan, {x, y, const_cast<float*>(weight)});
}

void CudnnConvolutions::backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                      const float* weight, const Tensor& grad_x) {
  Plan& plan = plan_for(problem(geometry, grad_x.shape, grad_x.dtype, ConvPass::kBackwardData));
  run(plan, {grad_x, grad_y, const_cast<float*>(weight)});
}

void CudnnConvolutions::backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                         const Tensor& grad_y, float* grad_weight) {
  Plan& plan = plan_for(problem(geometry, x.shape, x.dtype, ConvPass::kBackwardWeights));
  run(plan, {x, grad_y, grad_weight});
}

// --- bringing weights into a plan's order and type ---

void CudnnConvolutions::prepack(std::span<const ConvWeights> weights) {
  for (Packed& packed : packed_) packed.current = false;
  for (const ConvWeights& w : weights) {
    if (w.input.batch() == 0) continue;
    pack(plan_for(problem(w.geometry, w.input, w.dtype, ConvPass::kForward)), w.weight);
    if (!w.grad_input) continue;
    pack(plan_for(problem(w.geometry, w.input, w.dtype, ConvPass::kBackwardData)), w.weight);
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    to_pack_.clear();
    for (const Packed& packed : packed_) {
      if (!packed.current || packed.dtype != dtype) continue;
      to_pack_.push_back({packed.shape, packed.weight, packed.storage.data()});
    }
    if (!to_pack_.empty()) transpose(context_, to_pack_, DType::kFloat32, dtype, false);
  }
}

/// Marks the weights as to be packed for the plan; passes in one order share them.
void CudnnConvolutions::pack(const Plan& plan, const float* weight) {
  if (!wants_packed(plan.problem, plan.order)) return;
  Packed* packed = find_packed(plan, weight);
  if (packed == nullptr) {
    packed_.push_back({weight, transposition_to(plan.order, plan.problem.geometry),
                       plan.problem.dtype, memory_.allocate(weight_bytes(plan.problem)), false});
    packed = &packed_.back();
  }
  packed->current = true;
}

/// Null where these weights have never been packed so.
CudnnConvolutions::Packed* CudnnConvolutions::find_packed(const Plan& plan, const float* weight) {
  const Matrices shape = transposition_to(plan.order, plan.problem.geometry);
  const auto found = std::find_if(packed_.begin(), packed_.end(), [&](const Packed& packed) {
    return packed.weight == weight && packed.dtype == plan.problem.dtype && packed.shape == shape;
  });
  return found == packed_.end() ? nullptr : &*found;
}

// --- running a plan ---

void CudnnConvolutions::run(Plan& plan, const Operands& operands) {
  const std::int64_t images = plan.problem.input.batch();
  for (std::int64_t first = 0; first < operands.x.shape.batch(); first += images) {
    run_batch(plan, {operands.x.sample_range(first, images), operands.y.sample_range(first, images),
                     operands.weight});
  }
}

void CudnnConvolutions::run_batch(Plan& plan, const Operands& operands) {
  const ConvPass pass = plan.problem.pass;
  const auto& [x, y, weight] = operands;
  const DType dtype = plan.problem.dtype;
  const std::size_t x_bytes = usable(x) ? 0 : bytes_of(x.shape, dtype);
  const std::size_t y_bytes = usable(y) ? 0 : bytes_of(y.shape, dtype);
  const bool own_x = x_bytes != 0, own_y = y_bytes != 0;
  const bool reads_weight = pass != ConvPass::kBackwardWeights;
  const Packed* packed = reads_weight ? find_packed(plan, weight) : nullptr;
  const bool is_packed = packed != nullptr && packed->current;
  const bool own_weight =
      !is_packed && (!reads_weight || wants_packed(plan.problem, plan.order) || !aligned(weight));
  const std::size_t w_bytes = own_weight ? weight_bytes(plan.problem) : 0;
  Pieces pieces(memory_.scratch(padded(plan.cudnn.workspace) + w_bytes + x_bytes + y_bytes));
  void* workspace = pieces.take(plan.cudnn.workspace);
  void* w = own_weight ? pieces.take(w_bytes) : is_packed ? packed->storage.data() : weight;
  const Tensor dense_x = own_x ? Tensor(pieces.take(x_bytes), x.shape, dtype) : x;
  const Tensor dense_y = own_y ? Tensor(pieces.take(y_bytes), y.shape, dtype) : y;

  if (own_x && pass != ConvPass::kBackwardData) gpu::copy(context_, x, dense_x, false);
  if (own_y && pass != ConvPass::kForward) gpu::copy(context_, y, dense_y, false);
  if (own_weight && reads_weight) {
    const Transposition one{transposition_to(plan.order, plan.problem.geometry), weight, w};
    transpose(context_, {&one, 1}, DType::kFloat32, dtype, false);
  }
  execute(plan, {dense_x.data, dense_y.data, w, workspace});
  if (own_x && pass == ConvPass::kBackwardData) gpu::copy(context_, dense_x, x, false);
  if (own_y && pass == ConvPass::kForward) gpu::copy(context_, dense_y, y, false);
  if (pass == ConvPass::kBackwardWeights) add_weight_gradient(plan, w, weight);
}

void CudnnConvolutions::add_weight_gradient(const Plan& plan, const void* from, float* to) {
  const ConvGeometry& g = plan.problem.geometry;
  const Tensor computed = flat(from, g.weight_elements(), plan.problem.dtype);
  const Tensor master = flat(to, g.weight_elements(), DType::kFloat32);
  const Matrices forth = transposition_to(plan.order, g);
  if (is_in_place(forth)) return gpu::copy(context_, computed, master, true);
  transpose(context_, Matrices{forth.batch, forth.columns, forth.rows}, computed, master, true);
}

// A variant pack cannot be changed once it is finalized, and making one allocates host memory:
// those of the last addresses are kept.
void CudnnConvolutions::execute(Plan& plan, const std::array<void*, 4>& addresses) {
  std::vector<Binding>& bindings = plan.bindings;
  const std::size_t most = kMostBindings * static_cast<std::size_t>(plan.runs);
  auto binding = std::find_if(bindings.begin(), bindings.end(), [&](const Binding& candidate) {
    return candidate.addresses == addresses;
  });
  if (binding == bindings.end()) {
    const std::span<void* const> tensors(addresses.data(), 3);
    Binding made{addresses, make_variant_pack(tensors, addresses[3])};
    if (bindings.size() < most) {
      binding = bindings.insert(bindings.end(), std::move(made));
    } else {
      binding = bindings.begin() + static_cast<std::ptrdiff_t>(plan.next_binding);
      *binding = std::move(made);
      plan.next_binding = (plan.next_binding + 1) % most;
    }
  }
  check_cudnn(cudnnBackendExecute(handle_.get(), plan.cudnn.plan.get(), binding->pack.get()),
              "cudnnBackendExecute");
}

std::vector<std::string> CudnnConvolutions::describe_plans() const {
  std::vector<std::string> lines;
  for (const auto& plan : plans_) {
    const char* order = plan->order == WeightOrder::kOutTapsIn ? "channels-last" : "channels-first";
    std::string line =
        concat(describe(plan->problem), ": cuDNN's engine ", plan->cudnn.engine_number,
               ", weights ", order, ", ", plan->cudnn.workspace, " bytes of workspace, ");
    if (plan->milliseconds > 0) {
      lines.push_back(concat(line, plan->milliseconds, " ms"));
    } else {
      lines.push_back(concat(line, "not timed"));
    }
  }
  return lines;
}

// --- choosing a plan ---

CudnnConvolutions::Plan& CudnnConvolutions::plan_for(const ConvProblem& problem) {
  for (const auto& plan : plans_) {
    if (plan->problem == problem) return *plan;
  }
  problem.geometry.check();
  const Choice choice = choose(problem);
  std::string reason;
  Plan plan = make_chosen(problem, *parse_engine(choice.chosen), reason);
  LOCKSTEP_CHECK(plan.cudnn.plan.get() != nullptr, describe(problem), ": ", reason);
  plan.milliseconds = choice.milliseconds;
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
    return {problem, choice.order, {}};
  }
  return {problem, choice.order, make_plan(std::move(engines[choice.index]), reason)};
}

Choice CudnnConvolutions::choose(const ConvProblem& problem) {
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
  return Autotuner::of(options_.choices).choose(request);
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
  const Storage weight = memory_.allocate(weight_bytes(problem));
  const std::array tensors{x.data(), y.data(), weight.data()};
  const std::int64_t elements[] = {problem.input.elements(), output.elements(),
                                   problem.geometry.weight_elements()};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    fill_random(context_, flat(tensors[i], elements[i], dtype), i);
  }
  Measurement measured;
  float least = std::numeric_limits<float>::infinity();
  for (const WeightOrder order : weight_orders(problem.geometry)) {
    auto engines = find_engines(problem, order, target(), fallback, kMostEngines);
    for (std::size_t i = 0; i < engines.size(); ++i) {
      Plan plan{problem, order, make_plan(std::move(engines[i]), reason)};
      if (plan.cudnn.plan.get() == nullptr) continue;
      if (plan.cudnn.workspace > options_.most_workspace) {
        reason = concat("it asks for ", plan.cudnn.workspace, " bytes of workspace");
        continue;
      }
      const std::string name = to_string(EngineChoice{order, fallback, i});
      try {
        if (!by_time) {
          run_once(plan, tensors);
          measured.fastest = name;
          return measured;
        }
        const float time = milliseconds(plan, tensors, least);
        measured.milliseconds.emplace_back(name, time);
        if (time < kClearlyFaster * least) {
          least = time;
          measured.fastest = name;
        }
      } catch (const Error& error) {
        reason = error.what();  // an engine that fails is not taken; the next may do
      }
    }
  }
  return measured;
}

/// Throws what the engine says; the plan's memory is free again afterwards.
void CudnnConvolutions::run_once(Plan& plan, const std::array<void*, 3>& tensors) {
  const Storage workspace = memory_.allocate(padded(plan.cudnn.workspace));
  execute(plan, {tensors[0], tensors[1], tensors[2], workspace.data()});
  Event end(ordinal_, Event::Kind::kTime);
  end.record(context_.stream);
  end.synchronize();
}

/// The median of a run. Operands are random: on zeros a GPU draws less power, and clocks higher.
/// Ends early when it is hopeless beside `least`.
float CudnnConvolutions::milliseconds(Plan& plan, const std::array<void*, 3>& tensors,
                                      float least) {
  const Storage workspace = memory_.allocate(padded(plan.cudnn.workspace));
  const std::array addresses{tensors[0], tensors[1], tensors[2], workspace.data()};
  Event begin(ordinal_, Event::Kind::kTime), end(ordinal_, Event::Kind::kTime);
  execute(plan, addresses);  // the first run loads the kernels
  std::array<float, kRounds> times{};
  for (float& time : times) {
    begin.record(context_.stream);
    for (int i = 0; i < kRunsPerRound; ++i) execute(plan, addresses);
    end.record(context_.stream);
    end.synchronize();
    time = begin.milliseconds_until(end) / kRunsPerRound;
    if (time > kHopeless * least) return time;
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace lockstep::gpu
