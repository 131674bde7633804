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

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr int kLossThreads = 128;
constexpr std::int64_t kChunkPixels = 256;      // of one partial loss
constexpr int kTileFloats = 33 * kLossThreads;  // 128 pixels of up to 33 classes, 1 of 4096
constexpr int kSharedClasses = 32;              // of a confusion matrix in shared memory

template <typename T>
struct Loss {
  std::int64_t pixels;
  int classes;
  int ignore_index;
  Rows<const T> logits;
  Rows<const std::uint16_t> labels;
  const float* class_weight;  // null: all 1
  float label_smoothing, gamma;
  const float* row_weights;  // null: all 1
  std::int64_t rows_per_weight;
  DeviceScalar<double> normalizer;
  DeviceScalar<float> grad_scale;
  Rows<T> gradient;  // null: only the loss
  double* partials;  // [chunks]
  unsigned* counter;
  double* loss;

  __device__ float weight_of_class(int c) const {
    return class_weight == nullptr ? 1.0F : class_weight[c];
  }
  __device__ float weight_of_row(std::int64_t row) const {
    return row_weights == nullptr ? 1.0F : row_weights[row / rows_per_weight];
  }
  /// Floats of a pixel in a tile.
  __host__ __device__ int pixel_floats() const { return classes | 1; }
  __host__ __device__ int tile_pixels() const {
    const int fitting = kTileFloats / pixel_floats();
    return fitting < kLossThreads ? fitting : kLossThreads;
  }
};

__host__ __device__ std::int64_t chunks_of(std::int64_t pixels) {
  return (pixels + kChunkPixels - 1) / kChunkPixels;
}

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

/// What a pixel of this weight contributes to the gradient.
template <typename T>
__device__ float share_of(const Loss<T>& task, double weight) {
  const double normalizer = task.normalizer.get();
  const double share = normalizer == 0 ? 0 : weight / normalizer;
  return task.grad_scale.get() * static_cast<float>(share);
}

/// Weight * nll of one pixel. `values` are its logits, and its gradient afterwards. `pixel_share`:
/// that of a pixel of weight 1.
template <typename T>
__device__ double pixel_loss(const Loss<T>& task, float pixel_share, std::int64_t pixel,
                             float* values) {
  const int label = *task.labels.row(pixel);
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
    share = share_of(task, weight);
  }
  const float scale = share / sum;
  for (int c = 0; c < task.classes; ++c) {
    values[c] = scale * (values[c] - (c == label ? sum : 0.0F));
  }
  return weight * static_cast<double>(nll);
}

/// (1 - p)^gamma, and the factor of the label's share of the gradient. `rest`: 1 - p.
struct Modulation {
  float factor = 1, slope = 1;

  __device__ Modulation(float gamma, float rest, float nll) {
    if (gamma == 0) return;
    factor = rest == 0 ? 0 : std::pow(rest, gamma);
    slope = rest == 0 ? 0 : factor + gamma * (1 - rest) * nll * (factor / rest);
  }
};

/// The same with label smoothing, gamma and the rows' weights.
template <typename T>
__device__ double modulated_loss(const Loss<T>& task, std::int64_t pixel, float* values) {
  const int label = *task.labels.row(pixel);
  if (label == task.ignore_index) {
    for (int c = 0; c < task.classes; ++c) values[c] = 0;
    return 0;
  }
  float largest = values[0];
  for (int c = 1; c < task.classes; ++c) largest = values[c] > largest ? values[c] : largest;
  const bool known = label < task.classes;
  const float logit = known ? values[label] : std::numeric_limits<float>::quiet_NaN();
  const float spread = task.label_smoothing / static_cast<float>(task.classes);
  float sum = 0, others = 0, smooth = 0, all_smoothing = 0;
  for (int c = 0; c < task.classes; ++c) {
    const float smoothing = spread * task.weight_of_class(c);
    all_smoothing += smoothing;
    smooth += smoothing * (largest - values[c]);
    values[c] = std::exp(values[c] - largest);
    sum += values[c];
    others += c == label ? 0.0F : values[c];
  }
  const float log_sum = std::log(sum);
  const float nll = log_sum + (largest - logit);
  const Modulation focal(task.gamma, others / sum, nll);
  const float row = task.weight_of_row(pixel);
  const double weight =
      label_weight(known ? task.weight_of_class(label) : logit, task.label_smoothing);
  const float share = row * share_of(task, weight) * focal.slope;
  const float unit = row * share_of(task, 1.0);
  const float scale = (share + unit * all_smoothing) / sum;
  for (int c = 0; c < task.classes; ++c) {
    const float smoothed = values[c] * scale - unit * (spread * task.weight_of_class(c));
    values[c] = c == label ? smoothed - share : smoothed;
  }
  const double own = weight * static_cast<double>(focal.factor * nll);
  return static_cast<double>(row) * (own + static_cast<double>(all_smoothing * log_sum + smooth));
}

/// Loss of the calling thread's pixels of one chunk; writes the chunk's gradient. `kPlain`: a row's
/// label alone counts, with the weight of its class.
template <typename T, int kWidth, bool kPlain>
__device__ double chunk_loss(const Loss<T>& task, Tile& tile, std::int64_t begin,
                             std::int64_t end) {
  const int pitch = task.pixel_floats();
  const float share = share_of(task, 1.0);
  double loss = 0;
  for (std::int64_t first = begin; first < end; first += task.tile_pixels()) {
    const std::int64_t left = end - first;
    const int pixels = left < task.tile_pixels() ? static_cast<int>(left) : task.tile_pixels();
    for_each_pack<kWidth>(pixels, task.classes, [&](int pixel, int c) {
      const auto logits = load_pack<kWidth>(task.logits.row(first + pixel) + c);
      for (int k = 0; k < kWidth; ++k) tile.values[pixel * pitch + c + k] = logits[k];
    });
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < pixels) {
      float* values = tile.values + thread * pitch;
      loss += kPlain ? pixel_loss(task, share, first + thread, values)
                     : modulated_loss(task, first + thread, values);
    }
    __syncthreads();
    if (task.gradient.data == nullptr) continue;
    for_each_pack<kWidth>(pixels, task.classes, [&](int pixel, int c) {
      float gradient[kWidth];
      for (int k = 0; k < kWidth; ++k) gradient[k] = tile.values[pixel * pitch + c + k];
      store_rounded(task.gradient.row(first + pixel) + c, gradient);
    });
  }
  return loss;
}

template <typename T, int kWidth, bool kPlain>
__global__ void cross_entropy_kernel(Loss<T> task) {
  Tile& tile = block_shared<Tile>();
  const std::int64_t chunks = chunks_of(task.pixels);
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const std::int64_t begin = chunk * kChunkPixels;
    const std::int64_t end =
        begin + kChunkPixels < task.pixels ? begin + kChunkPixels : task.pixels;
    const double sum = block_sum(chunk_loss<T, kWidth, kPlain>(task, tile, begin, end));
    if (threadIdx.x == 0) task.partials[chunk] = sum;
  }
  add_partials(task.partials, chunks, task.counter, task.normalizer.get(), task.loss);
}

template <typename T>
struct Confusion {
  std::int64_t pixels;
  int classes;
  Rows<const T> logits;
  Rows<const std::uint16_t> labels;
  unsigned long long* matrix;  // [classes, classes]
};

/// The largest logit's class, the first of equals.
template <int kWidth, typename T>
__device__ int prediction(const T* logits, int classes) {
  int best = 0;
  float largest = to_float(logits[0]);
  for (int c = 0; c < classes; c += kWidth) {
    const auto pack = load_pack<kWidth>(logits + c);
    for (int k = 0; k < kWidth; ++k) {
      const bool larger = pack[k] > largest;
      largest = larger ? pack[k] : largest;
      best = larger ? c + k : best;
    }
  }
  return best;
}

/// Calls count(entry) for every counted pixel of the calling thread.
template <int kWidth, typename T, typename Count>
__device__ void for_each_entry(const Confusion<T>& task, const Count& count) {
  for (std::int64_t pixel = first_item(); pixel < task.pixels; pixel += item_stride()) {
    const int label = *task.labels.row(pixel);
    if (label >= task.classes) continue;
    count(label * task.classes + prediction<kWidth>(task.logits.row(pixel), task.classes));
  }
}

struct Counts {
  unsigned values[kSharedClasses * kSharedClasses];
};

template <typename T, int kWidth>
__global__ void shared_confusion_kernel(Confusion<T> task) {
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

template <typename T, int kWidth>
__global__ void confusion_kernel(Confusion<T> task) {
  for_each_entry<kWidth>(task, [&](int entry) { atomicAdd(task.matrix + entry, 1ULL); });
}

template <typename T>
Loss<T> loss_of(const Context& context, const CrossEntropy& arguments) {
  const std::int64_t pixels = arguments.logits.shape.rows();
  const auto bytes = static_cast<std::size_t>(chunks_of(pixels)) * sizeof(double);
  return {pixels,
          static_cast<int>(arguments.logits.shape.channels()),
          arguments.ignore_index,
          Rows<const T>(arguments.logits),
          Rows<const std::uint16_t>(arguments.labels),
          arguments.class_weight,
          arguments.label_smoothing,
          arguments.gamma,
          arguments.row_weights,
          arguments.rows_per_weight,
          arguments.normalizer,
          arguments.grad_scale,
          Rows<T>(arguments.grad_logits),
          static_cast<double*>(context.scratch(bytes)),
          context.counters,
          arguments.loss};
}

void add_cross_entropy(const Context& context, const CrossEntropy& arguments) {
  const Tensor& logits = arguments.logits;
  if (logits.shape.rows() == 0) return;
  with_packs({&logits, &arguments.grad_logits}, [&](auto element, auto width) {
    using T = decltype(element);
    const Loss<T> task = loss_of<T>(context, arguments);
    const unsigned blocks =
        blocks_for(chunks_of(task.pixels), 1, std::int64_t{12} * context.multiprocessors);
    const bool plain = task.label_smoothing == 0 && task.gamma == 0 && task.row_weights == nullptr;
    const auto kernel =
        plain ? cross_entropy_kernel<T, width(), true> : cross_entropy_kernel<T, width(), false>;
    launch(kernel, blocks, kLossThreads, context.stream, task);
  });
}

const float* weights_of_image(const CrossEntropy& arguments, std::int64_t image) {
  if (arguments.row_weights == nullptr) return nullptr;
  const std::int64_t rows = arguments.logits.shape.rows_per_sample();
  return arguments.row_weights + image * rows / arguments.rows_per_weight;
}

}  // namespace

void GpuLosses::cross_entropy(const CrossEntropy& arguments) {
  check_operands(arguments);
  check_parts(context_, "cross_entropy", arguments.image_losses == nullptr);
  const Context& context = context_.entered();
  if (!context.sums_by_image) return add_cross_entropy(context, arguments);
  add_losses_by_image(context, arguments.logits.shape.batch(), arguments.image_losses,
                      arguments.loss, [&](std::int64_t image, double* loss) {
                        CrossEntropy one = arguments;
                        one.logits = image_of(arguments.logits, image);
                        one.labels = image_of(arguments.labels, image);
                        one.grad_logits = image_of(arguments.grad_logits, image);
                        one.row_weights = weights_of_image(arguments, image);
                        one.loss = loss;
                        add_cross_entropy(context, one);
                      });
}

void GpuLosses::confusion_matrix(const Tensor& logits, const Tensor& labels, std::int64_t* matrix) {
  check_confusion_matrix(logits, labels, matrix);
  const Context& context = context_.entered();
  const std::int64_t pixels = logits.shape.rows();
  if (pixels == 0) return;
  const auto classes = static_cast<int>(logits.shape.channels());
  with_packs({&logits}, [&](auto element, auto width) {
    using T = decltype(element);
    const auto kernel = classes <= kSharedClasses ? shared_confusion_kernel<T, width()>
                                                  : confusion_kernel<T, width()>;
    launch_loop(
        context, pixels, kernel,
        Confusion<T>{pixels, classes, Rows<const T>(logits), Rows<const std::uint16_t>(labels),
                     reinterpret_cast<unsigned long long*>(matrix)});
  });
}

}  // namespace lockstep::gpu
