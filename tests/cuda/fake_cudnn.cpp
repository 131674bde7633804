// The part of cuDNN that CudnnConvolutions uses, without a GPU: descriptors are kept as they are
// set, and a plan is executed by plain loops over the tensors' strides, in the stream's turn, in
// host memory: products and sums in fp32, rounded to the tensor's type at the end. A plan that is
// executed again on the same operands, as where engines are timed, gives what it gave. Of the
// engines it lists only the last two may be taken, of which the clock prefers the first; the others
// are not deterministic, round their operands, fail, or ask for too much. Those for an odd number
// of input channels want the weights channels-last.

#include "cuda/fake_cudnn.h"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/fake_runtime.h"
#include "kernels/primitives/element.h"

namespace {

using lockstep::BFloat16;
using lockstep::gpu::Float16;

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<std::byte>> values;
  bool final = false;
  int engine = 0;
  Descriptor* graph = nullptr;
};

Descriptor& at(void* raw) { return *static_cast<Descriptor*>(raw); }

template <typename T>
T value(const Descriptor& from, int name, std::size_t index = 0) {
  T result;
  std::memcpy(&result, from.values.at(name).data() + index * sizeof(T), sizeof(T));
  return result;
}

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_FLOAT:
    case CUDNN_TYPE_KNOB_TYPE:
      return 4;
    default:
      return 8;
  }
}

enum Engine { kRandom, kRounding, kFailing, kGreedy, kGood, kOther, kEngines };
constexpr std::int64_t kWorkspace = 1000;
int runs_of_other = 0, asked = 0;
float milliseconds_of[2] = {1, 1};  // [whether the weights are channels-last]
bool last_channels_last = false;
std::atomic<int> destroyed_elsewhere = 0;

// What the fake's clock prefers is not for the user's own file.
const bool keeps_no_choices = setenv("LOCKSTEP_AUTOTUNE", "", 1) == 0;

/// A tensor whose values are looked at in fp32.
struct Strided {
  void* data = nullptr;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> extents{}, strides{};
  std::vector<float> values;  // as they lie in `data`

  float& operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return values[static_cast<std::size_t>(a * strides[0] + b * strides[1] + c * strides[2] +
                                           d * strides[3])];
  }
};

/// Calls visit(T*) with the tensor's memory.
template <typename Visit>
void with_elements(const Strided& tensor, const Visit& visit) {
  if (tensor.type == CUDNN_DATA_BFLOAT16) return visit(static_cast<BFloat16*>(tensor.data));
  if (tensor.type == CUDNN_DATA_HALF) return visit(static_cast<Float16*>(tensor.data));
  visit(static_cast<float*>(tensor.data));
}

std::size_t elements_of(const Strided& tensor) {
  const auto& e = tensor.extents;
  return static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]);
}

std::size_t bytes_of(const Strided& tensor) {
  return elements_of(tensor) * (tensor.type == CUDNN_DATA_FLOAT ? 4 : 2);
}

void load(Strided& tensor) {
  tensor.values.resize(elements_of(tensor));
  with_elements(tensor, [&](const auto* elements) {
    for (float& value : tensor.values) value = lockstep::gpu::to_float(*elements++);
  });
}

void store(const Strided& tensor) {
  with_elements(tensor, [&](auto* elements) {
    for (const float value : tensor.values) {
      *elements = lockstep::gpu::from_float<std::decay_t<decltype(*elements)>>(value);
      ++elements;
    }
  });
}

Strided bind(const Descriptor& tensor, const Descriptor& pack) {
  Strided result;
  for (std::size_t i = 0; i < 4; ++i) {
    result.extents[i] = value<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
    result.strides[i] = value<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_STRIDES, i);
  }
  const auto id = value<std::int64_t>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  for (std::size_t i = 0; i < 3; ++i) {
    if (value<std::int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i) != id) continue;
    result.data = value<void*>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
  }
  result.type = value<cudnnDataType_t>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
  return result;
}

/// Calls visit(x, w, y) for every product. In another order for one image than for several: what
/// cuDNN adds first depends on the batch, too.
template <typename Visit>
void for_each_product(Strided& x, Strided& w, Strided& y, const Descriptor& window,
                      const Visit& visit) {
  const auto pair = [&](cudnnBackendAttributeName_t name) {
    return std::array{value<std::int64_t>(window, name, 0), value<std::int64_t>(window, name, 1)};
  };
  const auto padding = pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const auto stride = pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const auto dilation = pair(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const std::int64_t groups = x.extents[1] / w.extents[1], outs = w.extents[0] / groups;
  const std::int64_t pixels = y.extents[2] * y.extents[3], taps = w.extents[2] * w.extents[3];
  const bool backwards = y.extents[0] > 1;
  for (std::int64_t n = 0; n < y.extents[0]; ++n) {
    for (std::int64_t i = 0; i < pixels; ++i) {
      const std::int64_t p = backwards ? pixels - 1 - i : i;
      const std::int64_t oy = p / y.extents[3], ox = p % y.extents[3];
      for (std::int64_t j = 0; j < taps; ++j) {
        const std::int64_t t = backwards ? taps - 1 - j : j;
        const std::int64_t ky = t / w.extents[3], kx = t % w.extents[3];
        const std::int64_t iy = oy * stride[0] - padding[0] + ky * dilation[0];
        const std::int64_t ix = ox * stride[1] - padding[1] + kx * dilation[1];
        if (iy < 0 || iy >= x.extents[2] || ix < 0 || ix >= x.extents[3]) continue;
        for (std::int64_t o = 0; o < w.extents[0]; ++o) {
          float *in = &x(n, o / outs * w.extents[1], iy, ix), *weight = &w(o, 0, ky, kx);
          float& out = y(n, o, oy, ox);
          for (std::int64_t c = 0; c < w.extents[1]; ++c) {
            visit(in[c * x.strides[1]], weight[c * w.strides[1]], out);
          }
        }
      }
    }
  }
}

/// The weights of a graph's operation.
const Descriptor& weight_of(const Descriptor& graph) {
  const auto& operation = at(value<void*>(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS));
  const int name = operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                       ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W
                   : operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                       ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W
                       : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW;
  return at(value<void*>(operation, name));
}

/// Whether there are two good engines: for six output channels only, since all are timed.
bool offers_other(const Descriptor& graph) {
  return value<std::int64_t>(weight_of(graph), CUDNN_ATTR_TENSOR_DIMENSIONS, 0) == 6;
}

bool is_channels_last(const Descriptor& weight) {
  return value<std::int64_t>(weight, CUDNN_ATTR_TENSOR_STRIDES, 1) == 1;
}

/// Whether no engine takes the weights as they lie.
bool wants_channels_last(const Descriptor& graph) {
  const Descriptor& weight = weight_of(graph);
  const auto extent = [&](std::size_t i) {
    return value<std::int64_t>(weight, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
  };
  if (extent(1) % 2 == 0 || extent(1) == 1 || extent(2) * extent(3) == 1) return false;
  return !is_channels_last(weight);
}

/// Where a kind of operation keeps its operands.
struct Names {
  cudnnBackendAttributeName_t x, w, y, window;
};

Names names_of(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC};
    default:
      return {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC};
  }
}

/// What a plan computed last, and of what, as it lay in memory.
struct Memory {
  std::vector<std::byte> a, b, result;
};

std::vector<std::byte> bytes_in(const Strided& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  return {bytes, bytes + bytes_of(tensor)};
}

bool is(const std::vector<std::byte>& bytes, const Strided& tensor) {
  return bytes.size() == bytes_of(tensor) &&
         std::memcmp(bytes.data(), tensor.data, bytes.size()) == 0;
}

/// Calls compute() on what a and b hold, and stores the result, unless that is what the plan gave
/// the last time.
template <typename Compute>
void compute_once(const Descriptor& plan, Strided& a, Strided& b, Strided& result,
                  const Compute& compute) {
  static std::map<const Descriptor*, Memory> memories;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Memory& memory = memories[&plan];
  if (is(memory.a, a) && is(memory.b, b) && !memory.result.empty()) {
    std::memcpy(result.data, memory.result.data(), memory.result.size());
    return;
  }
  load(a), load(b);
  result.values.assign(elements_of(result), 0.0F);
  compute();
  store(result);
  memory = {bytes_in(a), bytes_in(b), bytes_in(result)};
}

void execute(const Descriptor& plan, const Descriptor& pack) {
  std::memset(value<void*>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), 0xff, kWorkspace);
  const auto& operation = at(value<void*>(*plan.graph, CUDNN_ATTR_OPERATIONGRAPH_OPS));
  const Names names = names_of(operation.type);
  const auto tensor = [&](cudnnBackendAttributeName_t name) {
    return bind(at(value<void*>(operation, name)), pack);
  };
  Strided x = tensor(names.x), w = tensor(names.w), y = tensor(names.y);
  const Descriptor& window = at(value<void*>(operation, names.window));
  if (operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
    compute_once(plan, x, w, y, [&] {
      for_each_product(x, w, y, window, [](float a, float b, float& out) { out += a * b; });
    });
  } else if (operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    compute_once(plan, w, y, x, [&] {
      for_each_product(x, w, y, window, [](float& out, float b, float c) { out += b * c; });
    });
  } else {
    compute_once(plan, x, y, w, [&] {
      for_each_product(x, w, y, window, [](float a, float& out, float c) { out += a * c; });
    });
  }
}

}  // namespace

extern "C" {

struct cudnnContext {
  cudaStream_t stream = nullptr;
  int device = 0;
};

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return cudaGetDevice(&(*handle)->device) == cudaSuccess ? CUDNN_STATUS_SUCCESS
                                                          : CUDNN_STATUS_INTERNAL_ERROR;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  int device = -1;
  static_cast<void>(cudaGetDevice(&device));
  destroyed_elsewhere += device == handle->device ? 0 : 1;
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of the fake cuDNN"; }
void cudnnGetLastErrorString(char* text, std::size_t size) {
  if (size > 0) text[0] = '\0';
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  // For the rest of the process: graphs refer to what their makers destroy.
  static std::deque<Descriptor> all;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  *descriptor = &all.emplace_back(Descriptor{type, {}, false, 0, nullptr});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  if (at(descriptor).final) return CUDNN_STATUS_BAD_PARAM;
  const auto* begin = static_cast<const std::byte*>(values);
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(type);
  at(descriptor).values[name].assign(begin, begin + bytes);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t raw) {
  Descriptor& descriptor = at(raw);
  descriptor.final = true;
  if (descriptor.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) ++asked;
  if (descriptor.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  const auto& config = at(value<void*>(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
  descriptor.engine = config.engine;
  descriptor.graph = config.graph;
  return config.engine == kFailing ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const raw,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t most,
                                       std::int64_t* count, void* values) {
  const Descriptor& descriptor = at(raw);
  const auto put = [&](auto result) {
    *count = 1;
    std::memcpy(values, &result, sizeof result);
    return CUDNN_STATUS_SUCCESS;
  };
  *count = 0;
  switch (static_cast<int>(name)) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      auto& graph = at(value<void*>(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
      *count = wants_channels_last(graph) ? kGood : offers_other(graph) ? kEngines : kOther;
      for (std::int64_t i = 0; i < std::min(most, *count); ++i) {
        Descriptor& config = at(static_cast<void**>(values)[i]);
        config.engine = static_cast<int>(i);
        config.graph = &graph;
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      at(*static_cast<void**>(values)).engine = descriptor.engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:  // the two good ones differ by their knob
      return put(std::int64_t{std::min<int>(descriptor.engine, kGood)});
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      at(*static_cast<void**>(values)).engine = descriptor.engine;
      *count = 1;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
      return put(CUDNN_KNOB_TYPE_TILE_SIZE);
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      return put(std::int64_t{descriptor.engine == kOther});
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      if (descriptor.engine == kRandom) return put(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
      if (descriptor.engine == kRounding) return put(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return put(descriptor.engine == kGreedy ? std::int64_t{1} << 40 : kWorkspace);
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const int engine = at(plan).engine;
  if (engine != kGood && engine != kOther) return CUDNN_STATUS_SUCCESS;  // and wrong results
  runs_of_other += engine == kOther ? 1 : 0;
  last_channels_last = is_channels_last(weight_of(*at(plan).graph));
  lockstep::fake_runtime::set_milliseconds(milliseconds_of[last_channels_last ? 1 : 0]);
  // The plan outlives its executions, the pack need not.
  lockstep::fake_runtime::enqueue(handle->stream,
                                  [&plan = at(plan), pack = at(pack)] { execute(plan, pack); });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

namespace lockstep::fake_cudnn {

int runs_of_the_other_engine() { return runs_of_other; }
int times_asked() { return asked; }

void set_milliseconds(float out_in_taps, float out_taps_in) {
  milliseconds_of[0] = out_in_taps;
  milliseconds_of[1] = out_taps_in;
}

bool last_was_channels_last() { return last_channels_last; }

int handles_destroyed_elsewhere() { return destroyed_elsewhere; }

}  // namespace lockstep::fake_cudnn
