// Softmax cross-entropy and the confusion matrix.
//
// Cross-entropy reads the logits once: a block copies those of a tile of pixels to shared memory,
// in memory order, then each thread computes one pixel there (its row of shared memory has an odd
// length, so that the threads of a warp meet different banks) and leaves the gradient in place,
// which goes out in memory order again. A block's chunk of pixels has one partial loss, whatever
// the grid; the last block adds them up.
//
// The confusion matrix counts in shared memory while the matrix is small enough, and adds its
// counts to the result at the end. Integer additions are exact in any order.

#include <cmath>
#include <limits>

#include "kernels/operations/loss.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kMaxClasses = 256;  // labels are bytes
constexpr int kLossThreads = 128;
constexpr std::int64_t kChunkPixels = 256;      // of one partial loss
constexpr int kTileFloats = 33 * kLossThreads;  // 128 pixels of up to 33 classes, 16 of 256
constexpr int kSharedClasses = 32;              // of a confusion matrix in shared memory

struct Loss {
  std::int64_t rows;
  int classes;
  int ignore_index;
  const float* logits;
  std::int64_t logits_stride;
  const std::uint8_t* labels;
  std::int64_t labels_stride;
  const float* class_weight;  // null: all 1
  DeviceScalar<double> normalizer = 1.0;
  float* gradient;  // null: only the loss
  std::int64_t gradient_stride;
  double* partials;  // [chunks]
  unsigned* counter;
  double* loss;

  /// Floats of a pixel in a tile.
  __host__ __device__ int pixel_floats() const { return classes | 1; }
  __host__ __device__ int tile_pixels() const {
    const int fitting = kTileFloats / pixel_floats();
    return fitting < kLossThreads ? fitting : kLossThreads;
  }
  __host__ __device__ std::int64_t chunks() const {
    return (rows + kChunkPixels - 1) / kChunkPixels;
  }
};

struct Tile {
  float values[kTileFloats];
};

/// Calls body(pixel, first channel) for the calling thread's packs of a tile: always the same ones.
template <int kWidth, typename Body>
__device__ void for_each_pack(int pixels, int classes, const Body& body) {
  const int packs = classes / kWidth;
  const int thread = static_cast<int>(threadIdx.x);
  int pixel = thread / packs, pack = thread % packs;
  while (pixel < pixels) {
    body(pixel, pack * kWidth);
    pixel += kLossThreads / packs;
    pack += kLossThreads % packs;
    if (pack >= packs) {
      pack -= packs;
      ++pixel;
    }
  }
}

/// What one unit of weight contributes to the gradient: all pixels share it.
__device__ double share_of(double weight, double normalizer) {
  return normalizer == 0 ? 0 : weight / normalizer;
}

/// Weight * nll of one pixel. `values` are its logits, and its gradient afterwards. `pixel_share`:
/// that of a pixel of weight 1.
__device__ double pixel_loss(const Loss& task, float pixel_share, std::int64_t row, float* values) {
  const int label = task.labels[row * task.labels_stride];
  if (label == task.ignore_index) {
    for (int c = 0; c < task.classes; ++c) values[c] = 0;
    return 0;
  }
  float largest = values[0];
  for (int c = 1; c < task.classes; ++c) largest = values[c] > largest ? values[c] : largest;
  const bool known = label < task.classes;
  const float logit = known ? values[label] : std::numeric_limits<float>::quiet_NaN();
  float sum = 0;
  for (int c = 0; c < task.classes; ++c) {
    values[c] = std::exp(values[c] - largest);
    sum += values[c];
  }
  const float nll = std::log(sum) + (largest - logit);
  double weight = 1;
  float share = known ? pixel_share : logit;
  if (task.class_weight != nullptr && known) {
    weight = static_cast<double>(task.class_weight[label]);
    share = static_cast<float>(share_of(weight, task.normalizer.get()));
  }
  const float scale = share / sum;
  for (int c = 0; c < task.classes; ++c) {
    values[c] = scale * (values[c] - (c == label ? sum : 0.0F));
  }
  return weight * static_cast<double>(nll);
}

/// Loss of the calling thread's pixels of one chunk; writes the chunk's gradient.
template <int kWidth>
__device__ double chunk_loss(const Loss& task, Tile& tile, std::int64_t begin, std::int64_t end) {
  const int pitch = task.pixel_floats();
  const auto share = static_cast<float>(share_of(1.0, task.normalizer.get()));
  double loss = 0;
  for (std::int64_t first = begin; first < end; first += task.tile_pixels()) {
    const std::int64_t left = end - first;
    const int pixels = left < task.tile_pixels() ? static_cast<int>(left) : task.tile_pixels();
    for_each_pack<kWidth>(pixels, task.classes, [&](int pixel, int c) {
      const auto logits = load_pack<kWidth>(task.logits + (first + pixel) * task.logits_stride + c);
      for (int k = 0; k < kWidth; ++k) tile.values[pixel * pitch + c + k] = logits.values[k];
    });
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < pixels)
      loss += pixel_loss(task, share, first + thread, tile.values + thread * pitch);
    __syncthreads();
    if (task.gradient == nullptr) continue;
    for_each_pack<kWidth>(pixels, task.classes, [&](int pixel, int c) {
      Pack<float, kWidth> gradient;
      for (int k = 0; k < kWidth; ++k) gradient.values[k] = tile.values[pixel * pitch + c + k];
      store_pack<kWidth>(task.gradient + (first + pixel) * task.gradient_stride + c, gradient);
    });
  }
  return loss;
}

template <int kWidth>
__global__ void cross_entropy_kernel(Loss task) {
  Tile& tile = block_shared<Tile>();
  for (std::int64_t chunk = blockIdx.x; chunk < task.chunks(); chunk += gridDim.x) {
    const std::int64_t begin = chunk * kChunkPixels;
    const std::int64_t end = begin + kChunkPixels < task.rows ? begin + kChunkPixels : task.rows;
    const double sum = block_sum(chunk_loss<kWidth>(task, tile, begin, end));
    if (threadIdx.x == 0) task.partials[chunk] = sum;
  }
  add_partials(task.partials, task.chunks(), task.counter, task.normalizer.get(), task.loss);
}

struct Confusion {
  std::int64_t rows;
  int classes;
  const float* logits;
  std::int64_t logits_stride;
  const std::uint8_t* labels;
  std::int64_t labels_stride;
  unsigned long long* matrix;  // [classes, classes]
};

/// The largest logit's class, the first of equals.
template <int kWidth>
__device__ int prediction(const float* logits, int classes) {
  int best = 0;
  float largest = logits[0];
  for (int c = 0; c < classes; c += kWidth) {
    const auto pack = load_pack<kWidth>(logits + c);
    for (int k = 0; k < kWidth; ++k) {
      const bool larger = pack.values[k] > largest;
      largest = larger ? pack.values[k] : largest;
      best = larger ? c + k : best;
    }
  }
  return best;
}

/// Calls count(entry) for every counted pixel of the calling thread.
template <int kWidth, typename Count>
__device__ void for_each_entry(const Confusion& task, const Count& count) {
  for (std::int64_t row = first_item(); row < task.rows; row += item_stride()) {
    const int label = task.labels[row * task.labels_stride];
    if (label >= task.classes) continue;
    count(label * task.classes +
          prediction<kWidth>(task.logits + row * task.logits_stride, task.classes));
  }
}

struct Counts {
  unsigned values[kSharedClasses * kSharedClasses];
};

template <int kWidth>
__global__ void shared_confusion_kernel(Confusion task) {
  Counts& shared = block_shared<Counts>();
  const unsigned entries = static_cast<unsigned>(task.classes * task.classes);
  for (unsigned i = threadIdx.x; i < entries; i += blockDim.x) shared.values[i] = 0;
  __syncthreads();
  for_each_entry<kWidth>(task, [&](int entry) { atomicAdd(shared.values + entry, 1U); });
  __syncthreads();
  for (unsigned i = threadIdx.x; i < entries; i += blockDim.x) {
    const unsigned count = shared.values[i];
    if (count > 0) atomicAdd(task.matrix + i, static_cast<unsigned long long>(count));
  }
}

template <int kWidth>
__global__ void confusion_kernel(Confusion task) {
  for_each_entry<kWidth>(task, [&](int entry) { atomicAdd(task.matrix + entry, 1ULL); });
}

void check_labels_shape(const Shape& logits, const Tensor& labels) {
  LOCKSTEP_CHECK(labels.shape == logits.with_channels(1) && labels.dtype == DType::kUInt8,
                 "labels must be uint8 of shape ", to_string(logits.with_channels(1)), ", got ",
                 to_string(labels.shape));
  LOCKSTEP_CHECK(logits.channels() > 0 && logits.channels() <= kMaxClasses, "1 to ", kMaxClasses,
                 " classes, got ", logits.channels());
}

Loss loss_of(const CrossEntropy& arguments) {
  Loss task{};
  task.rows = arguments.logits.shape.rows();
  task.classes = static_cast<int>(arguments.logits.shape.channels());
  task.ignore_index = arguments.ignore_index;
  task.logits = arguments.logits.floats();
  task.logits_stride = arguments.logits.row_stride;
  task.labels = arguments.labels.bytes();
  task.labels_stride = arguments.labels.row_stride;
  task.class_weight = arguments.class_weight;
  task.normalizer = arguments.normalizer;
  task.loss = arguments.loss;
  if (arguments.grad_logits) {
    LOCKSTEP_CHECK(arguments.grad_logits.shape == arguments.logits.shape, "the gradient of logits ",
                   to_string(arguments.logits.shape), " has shape ",
                   to_string(arguments.grad_logits.shape));
    task.gradient = arguments.grad_logits.floats();
    task.gradient_stride = arguments.grad_logits.row_stride;
  }
  return task;
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& arguments) {
  if (arguments.logits.shape.rows() == 0) return;
  check_labels_shape(arguments.logits.shape, arguments.labels);
  Loss task = loss_of(arguments);
  task.partials = static_cast<double*>(
      context.scratch(static_cast<std::size_t>(task.chunks()) * sizeof(double)));
  task.counter = context.counters;
  const unsigned blocks = blocks_for(task.chunks(), 1, std::int64_t{12} * context.multiprocessors);
  const bool packs = allow_packs({&arguments.logits}) &&
                     (task.gradient == nullptr || allow_packs({&arguments.grad_logits}));
  launch(packs ? cross_entropy_kernel<kPackWidth> : cross_entropy_kernel<1>, blocks, kLossThreads,
         context.stream, task);
}

void confusion_matrix(const Context& context, const Tensor& logits, const Tensor& labels,
                      std::int64_t* matrix) {
  const std::int64_t rows = logits.shape.rows();
  if (rows == 0) return;
  check_labels_shape(logits.shape, labels);
  const Confusion task{rows,
                       static_cast<int>(logits.shape.channels()),
                       logits.floats(),
                       logits.row_stride,
                       labels.bytes(),
                       labels.row_stride,
                       reinterpret_cast<unsigned long long*>(matrix)};
  const bool packs = allow_packs({&logits});
  const unsigned blocks = blocks_for_items(context, rows);
  if (task.classes <= kSharedClasses) {
    launch(packs ? shared_confusion_kernel<kPackWidth> : shared_confusion_kernel<1>, blocks,
           kPackThreads, context.stream, task);
  } else {
    launch(packs ? confusion_kernel<kPackWidth> : confusion_kernel<1>, blocks, kPackThreads,
           context.stream, task);
  }
}

}  // namespace lockstep::gpu
