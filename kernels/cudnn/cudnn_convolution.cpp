#include "kernels/cudnn/cudnn_convolution.h"

#include <algorithm>
#include <limits>

#include "backend/conv/autotuner.h"
#include "backend/operand_checks.h"
#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/device.h"
#include "kernels/operations/image_sums.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

// Per plan: layers of one geometry share it, 36 of them in ResNet-152, and a network that evaluates
// has tensors of its own.
constexpr std::size_t kMostBindings = 128;

// Of some tens of KiB of host memory each. A large network has a hundred for a size of image.
constexpr std::ptrdiff_t kMostUntimedPlans = 1024;

constexpr int kFirstWithBFloat16 = 8;  // compute capability: Ampere

constexpr std::array kConvolutionTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kCudnnAlignment == 0;
}

/// Whether cuDNN can take the tensor as it lies: plans are made for dense, aligned ones.
bool usable(const Tensor& tensor) { return tensor.dense() && aligned(tensor.data); }

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

/// The way back.
Matrices transposition_from(WeightOrder order, const ConvGeometry& g) {
  const Matrices forth = transposition_to(order, g);
  if (forth.columns == 1) return forth;
  return {forth.batch, forth.columns, forth.rows};
}

bool is_in_place(const Matrices& transposition) { return transposition.columns == 1; }

/// Whether a plan's weights differ from the fp32 ones in PyTorch's order.
bool wants_packed(const ConvProblem& problem, WeightOrder order) {
  return problem.dtype != DType::kFloat32 ||
         !is_in_place(transposition_to(order, problem.geometry));
}

bool operator==(const Matrices& a, const Matrices& b) {
  return a.batch == b.batch && a.rows == b.rows && a.columns == b.columns;
}

}  // namespace

CudnnConvolutions::CudnnConvolutions(const Device& device, const Context& context,
                                     ConvolutionMemory memory, bool tf32)
    : device_(device),
      context_(context),
      compute_capability_(describe_device(device.ordinal).major),
      memory_(std::move(memory)),
      tf32_(tf32),
      handle_(make_handle(device.ordinal, context.stream)),
      search_(device.ordinal, handle_.get(), context, memory_.allocate, Autotuner::default_file()) {
}

CudnnConvolutions::~CudnnConvolutions() = default;

CudnnConvolutions::Handle CudnnConvolutions::make_handle(int ordinal, Stream stream) {
  make_current(ordinal);
  cudnnHandle_t made = nullptr;
  check_cudnn(cudnnCreate(&made), "cudnnCreate");
  Handle handle(made, DestroyHandle{ordinal});
  check_cudnn(cudnnSetStream(made, stream), "cudnnSetStream");
  return handle;
}

void CudnnConvolutions::DestroyHandle::operator()(cudnnContext* handle) const {
  static_cast<void>(cudaSetDevice(ordinal));  // fails where the device is lost
  cudnnDestroy(handle);
}

// --- the passes ---

ConvProblem CudnnConvolutions::problem(const ConvGeometry& geometry, const Shape& input,
                                       DType dtype, ConvPass pass) const {
  const Shape images = context_.sums_by_image ? input.with_batch(1) : input;
  return {geometry, images, pass, dtype, tf32_ && dtype == DType::kFloat32};
}

void CudnnConvolutions::prepare_conv2d(const ConvGeometry& geometry, const Shape& input,
                                       DType dtype, bool backward, bool grad_input) {
  check_prepare_conv2d(geometry, input, dtype);
  if (input.batch() == 0) return;
  if (dtype == DType::kBFloat16 && compute_capability_ < kFirstWithBFloat16) {
    throw ConfigError(concat(to_string(device_), " has compute capability ", compute_capability_,
                             ".x and no bf16; use run.precision = \"fp16\" or \"fp32\""));
  }
  context_.enter();
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    Plan& plan = plan_for(problem(geometry, input, dtype, pass), backward);
    plan.runs = std::max(plan.runs, input.batch() / plan.problem.input.batch());
    memory_.scratch(padded(plan.found.cudnn.workspace) + weight_bytes(plan.problem));
  }
}

void CudnnConvolutions::conv2d_forward(const ConvGeometry& geometry, const Tensor& x,
                                       const float* weight, const float* bias, const Tensor& y) {
  check_conv2d(ConvPass::kForward, geometry, x, weight, y);
  if (x.shape.batch() == 0) return;
  context_.enter();
  Plan& plan = plan_for(problem(geometry, x.shape, x.dtype, ConvPass::kForward));
  run(plan, {x, y, const_cast<float*>(weight)});
  if (bias != nullptr) add_bias(context_, bias, y);
}

void CudnnConvolutions::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                             const float* weight, const Tensor& grad_x) {
  check_conv2d(ConvPass::kBackwardData, geometry, grad_x, weight, grad_y);
  if (grad_x.shape.batch() == 0) return;
  context_.enter();
  Plan& plan = plan_for(problem(geometry, grad_x.shape, grad_x.dtype, ConvPass::kBackwardData));
  run(plan, {grad_x, grad_y, const_cast<float*>(weight)});
}

void CudnnConvolutions::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                                const Tensor& grad_y, float* grad_weight,
                                                float* grad_bias) {
  check_conv2d(ConvPass::kBackwardWeights, geometry, x, grad_weight, grad_y);
  if (x.shape.batch() == 0) return;
  context_.enter();
  // All images at once, or each by itself.
  const std::int64_t parts = context_.sums_by_image ? x.shape.batch() : 1;
  const std::int64_t images = x.shape.batch() / parts;
  const auto part_of = [images](const Tensor& tensor, std::int64_t part) {
    return tensor.sample_range(part * images, images);
  };
  add_in_tree(
      context_, parts, geometry.weight_elements(), grad_weight, [&](std::int64_t part, float* sum) {
        const Tensor input = part_of(x, part);
        Plan& plan = plan_for(problem(geometry, input.shape, x.dtype, ConvPass::kBackwardWeights));
        run(plan, {input, part_of(grad_y, part), sum});
      });
  if (grad_bias == nullptr) return;
  add_in_tree(
      context_, parts, geometry.out_channels, grad_bias,
      [&](std::int64_t part, float* sum) { bias_gradient(context_, part_of(grad_y, part), sum); });
}

void CudnnConvolutions::conv2d_inference(const ConvGeometry&, const Tensor&, const float*,
                                         const float*, const BatchNormInference&) {
  throw Error("no convolution is normalised on " + to_string(device_));
}

// --- bringing weights into a plan's order and type ---

void CudnnConvolutions::prepack_conv2d_weights(std::span<const ConvWeights> weights) {
  check_prepack_conv2d_weights(weights);
  context_.enter();
  for (Packed& packed : packed_) packed.current = false;
  for (const ConvWeights& w : weights) {
    if (w.input.batch() == 0) continue;
    pack(plan_for(problem(w.geometry, w.input, w.dtype, ConvPass::kForward)), w.weight);
    if (!w.grad_input) continue;
    pack(plan_for(problem(w.geometry, w.input, w.dtype, ConvPass::kBackwardData)), w.weight);
  }
  for (const DType dtype : kConvolutionTypes) {
    together_.clear();
    for (const Packed& packed : packed_) {
      if (!packed.current || packed.dtype != dtype) continue;
      together_.push_back({packed.shape, packed.weight, packed.storage.data()});
    }
    if (!together_.empty()) transpose(context_, together_, DType::kFloat32, dtype, false);
  }
  reserve_gradients(weights);
}

/// Marks the weights as to be packed for the plan; passes in one order share them.
void CudnnConvolutions::pack(const Plan& plan, const float* weight) {
  if (!wants_packed(plan.problem, plan.found.order)) return;
  Packed* packed = find_packed(plan, weight);
  if (packed == nullptr) {
    packed_.push_back({weight, transposition_to(plan.found.order, plan.problem.geometry),
                       plan.problem.dtype, memory_.allocate(weight_bytes(plan.problem)), false});
    packed = &packed_.back();
  }
  packed->current = true;
}

/// Null where these weights have never been packed so.
CudnnConvolutions::Packed* CudnnConvolutions::find_packed(const Plan& plan, const float* weight) {
  const Matrices shape = transposition_to(plan.found.order, plan.problem.geometry);
  const auto found = std::find_if(packed_.begin(), packed_.end(), [&](const Packed& packed) {
    return packed.weight == weight && packed.dtype == plan.problem.dtype && packed.shape == shape;
  });
  return found == packed_.end() ? nullptr : &*found;
}

// --- bringing gradients out of a plan's order and type ---

/// Forgets what was left, and takes the memory for what these weights' passes leave.
void CudnnConvolutions::reserve_gradients(std::span<const ConvWeights> weights) {
  left_.clear();
  left_bytes_ = left_capacity_ = 0;
  if (context_.sums_by_image) return;  // a sum is read as soon as an image has been added
  for (const ConvWeights& w : weights) {
    if (!w.grad_weight || w.input.batch() == 0) continue;
    left_capacity_ +=
        weight_bytes(problem(w.geometry, w.input, w.dtype, ConvPass::kBackwardWeights));
  }
  if (left_capacity_ > left_memory_.bytes()) left_memory_ = memory_.allocate(left_capacity_);
}

/// Where a pass may leave the gradient; null where it is to be added at once.
void* CudnnConvolutions::take_left(const Plan& plan, const float* grad_weight) {
  const std::size_t bytes = weight_bytes(plan.problem);
  if (bytes > left_capacity_) return nullptr;
  // No two of a launch add to the same memory.
  const bool again = std::any_of(left_.begin(), left_.end(), [&](const LeftGradient& left) {
    return left.home.to == grad_weight;
  });
  if (again || left_bytes_ + bytes > left_capacity_) finish_conv2d_gradients();
  std::byte* taken = static_cast<std::byte*>(left_memory_.data()) + left_bytes_;
  left_bytes_ += bytes;
  return taken;
}

void CudnnConvolutions::finish_conv2d_gradients() {
  context_.enter();
  for (const DType dtype : kConvolutionTypes) {
    together_.clear();
    for (const LeftGradient& left : left_) {
      if (left.dtype == dtype) together_.push_back(left.home);
    }
    if (!together_.empty()) transpose(context_, together_, dtype, DType::kFloat32, true);
  }
  left_.clear();
  left_bytes_ = 0;
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
  void* left = reads_weight ? nullptr : take_left(plan, weight);
  const bool own_weight =
      !is_packed && left == nullptr &&
      (!reads_weight || wants_packed(plan.problem, plan.found.order) || !aligned(weight));
  const std::size_t w_bytes = own_weight ? weight_bytes(plan.problem) : 0;
  Pieces pieces(memory_.scratch(padded(plan.found.cudnn.workspace) + w_bytes + x_bytes + y_bytes));
  void* workspace = pieces.take(plan.found.cudnn.workspace);
  void* w = left != nullptr ? left
            : own_weight    ? pieces.take(w_bytes)
            : is_packed     ? packed->storage.data()
                            : weight;
  const Tensor dense_x = own_x ? Tensor(pieces.take(x_bytes), x.shape, dtype) : x;
  const Tensor dense_y = own_y ? Tensor(pieces.take(y_bytes), y.shape, dtype) : y;

  if (own_x && pass != ConvPass::kBackwardData) gpu::copy(context_, x, dense_x, false);
  if (own_y && pass != ConvPass::kForward) gpu::copy(context_, y, dense_y, false);
  if (own_weight && reads_weight) {
    const Transposition one{transposition_to(plan.found.order, plan.problem.geometry), weight, w};
    transpose(context_, {&one, 1}, DType::kFloat32, dtype, false);
  }
  execute(plan, {dense_x.data, dense_y.data, w, workspace});
  if (own_x && pass == ConvPass::kBackwardData) gpu::copy(context_, dense_x, x, false);
  if (own_y && pass == ConvPass::kForward) gpu::copy(context_, dense_y, y, false);
  if (reads_weight) return;
  const Transposition home{transposition_from(plan.found.order, plan.problem.geometry), w, weight};
  if (left != nullptr) return left_.push_back({home, dtype});
  transpose(context_, {&home, 1}, dtype, DType::kFloat32, true);
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
  check_cudnn(cudnnBackendExecute(handle_.get(), plan.found.cudnn.plan.get(), binding->pack.get()),
              "cudnnBackendExecute");
  context_.behind_no_kernel = false;
}

std::vector<std::string> CudnnConvolutions::conv2d_algorithms() const {
  std::vector<std::string> lines;
  for (const auto& plan : plans_) {
    const char* order =
        plan->found.order == WeightOrder::kOutTapsIn ? "channels-last" : "channels-first";
    std::string line =
        concat(describe(plan->problem), ": cuDNN's engine ", plan->found.cudnn.engine_number,
               ", weights ", order, ", ", plan->found.cudnn.workspace, " bytes of workspace, ");
    if (plan->found.milliseconds > 0) {
      lines.push_back(concat(line, plan->found.milliseconds, " ms"));
    } else {
      lines.push_back(concat(line, "not timed"));
    }
  }
  lines.insert(lines.end(), search_.rejections().begin(), search_.rejections().end());
  return lines;
}

// The plans that were used last are at the end, where the search begins: images to evaluate may
// come in hundreds of sizes.
CudnnConvolutions::Plan& CudnnConvolutions::plan_for(const ConvProblem& problem, bool timed) {
  const auto known = std::find_if(plans_.rbegin(), plans_.rend(),
                                  [&](const auto& plan) { return plan->problem == problem; });
  if (known != plans_.rend()) {
    std::rotate(known.base() - 1, known.base(), plans_.end());
    Plan& plan = *plans_.back();
    if (timed && !plan.timed) plan = {problem, search_.find(problem, true), true};
    return plan;
  }
  FoundPlan found = search_.find(problem, timed);
  if (!timed) drop_old_plans();
  plans_.push_back(std::make_unique<Plan>(Plan{problem, std::move(found), timed}));
  return *plans_.back();
}

/// Where there are too many, the older half of those that no training uses.
void CudnnConvolutions::drop_old_plans() {
  const auto is_untimed = [](const auto& plan) { return !plan->timed; };
  if (std::ranges::count_if(plans_, is_untimed) < kMostUntimedPlans) return;
  check_cuda(cudaStreamSynchronize(context_.stream), "cudaStreamSynchronize");  // it may use them
  std::ptrdiff_t left = kMostUntimedPlans / 2;
  std::erase_if(plans_, [&](const auto& plan) { return is_untimed(plan) && left-- > 0; });
}

}  // namespace lockstep::gpu
