// The Dice loss. First the largest logit and the sum of exponentials of every pixel; then, one
// thread a class of a chunk of an image's pixels, neighbouring threads neighbouring classes, the
// sums, of which a warp adds up those of all chunks. The loss and its slopes are a thread's work
// for each set of sums; the gradient one's for each pixel.

#include <cmath>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr std::int32_t kChunkPixels = 512;  // of a partial sum

template <typename T>
struct LabelledPixels {
  std::int32_t images, image_pixels, classes;
  int ignore_index;
  Rows<const T> logits;
  Rows<const std::uint16_t> labels;
  float* softmax;  // [pixels, 2]: the largest logit, 1 / sum of the exponentials

  __host__ __device__ std::int32_t pixels() const { return images * image_pixels; }
  __device__ bool ignored(std::int32_t pixel) const { return *labels.row(pixel) == ignore_index; }
  __device__ float probability(std::int32_t pixel, std::int32_t c) const {
    const float* of_pixel = softmax + 2 * std::int64_t{pixel};
    return std::exp(to_float(logits.row(pixel)[c]) - of_pixel[0]) * of_pixel[1];
  }
};

/// What a pixel's probabilities have in common.
template <typename T>
struct PixelSoftmax {
  LabelledPixels<T> all;

  __device__ void operator()(std::int32_t pixel) const {
    const T* logits = all.logits.row(pixel);
    float largest = to_float(logits[0]);
    for (std::int32_t c = 1; c < all.classes; ++c) {
      const float logit = to_float(logits[c]);
      largest = logit > largest ? logit : largest;
    }
    float sum = 0;
    for (std::int32_t c = 0; c < all.classes; ++c) sum += std::exp(to_float(logits[c]) - largest);
    float* to = all.softmax + 2 * std::int64_t{pixel};
    to[0] = largest;
    to[1] = 1 / sum;
  }
};

template <typename T>
struct ChunkSums {
  LabelledPixels<T> all;
  std::int32_t image_chunks;
  double* partials;  // [image, chunk, 3, C]

  __device__ void operator()(std::int32_t i) const {
    const std::int32_t chunk = i / all.classes, c = i - chunk * all.classes;
    const std::int32_t image = chunk / image_chunks;
    const std::int32_t begin = (chunk - image * image_chunks) * kChunkPixels;
    const std::int32_t left = all.image_pixels - begin;
    const std::int32_t first = image * all.image_pixels + begin;
    const std::int32_t end = first + (left < kChunkPixels ? left : kChunkPixels);
    double overlap = 0, predicted = 0, labelled = 0;
    for (std::int32_t pixel = first; pixel < end; ++pixel) {
      if (all.ignored(pixel)) continue;
      const auto p = static_cast<double>(all.probability(pixel, c));
      const bool own = *all.labels.row(pixel) == c;
      predicted += p;
      overlap += own ? p : 0.0;
      labelled += own ? 1.0 : 0.0;
    }
    double* to = partials + std::int64_t{chunk} * 3 * all.classes + c;
    to[0] = overlap;
    to[all.classes] = predicted;
    to[2 * all.classes] = labelled;
  }
};

/// Slots of so many images each. A warp takes an element of a slot.
struct ImageSums {
  std::int32_t slot_count;
  std::int32_t elements;  // of a slot, the samples' weight among them
  std::int32_t slot_images, image_chunks;
  const double* partials;
  const float* sample_weights;
  float* slots;

  // The lanes take every 32nd chunk.
  __device__ double image_sum(std::int32_t image, std::int32_t element, int lane) const {
    if (element + 1 == elements) return 1;
    const double* from = partials + std::int64_t{image} * image_chunks * (elements - 1) + element;
    double sum = 0;
    for (std::int32_t chunk = lane; chunk < image_chunks; chunk += kWarpSize) {
      sum += from[std::int64_t{chunk} * (elements - 1)];
    }
    return warp_sum(sum);
  }
  __device__ void take(std::int32_t i, int lane) const {
    const std::int32_t slot = i / elements, element = i - slot * elements;
    double sum = 0;
    for (std::int32_t image = slot * slot_images; image < (slot + 1) * slot_images; ++image) {
      sum +=
          static_cast<double>(weight_of(sample_weights, image)) * image_sum(image, element, lane);
    }
    if (lane != 0) return;
    const SplitSum split(sum);
    float* to = slots + std::int64_t{slot} * 2 * elements;
    to[element] = split.nearest;
    to[elements + element] = split.rest;
  }
};

constexpr int kSumThreads = 256;

__global__ void image_sums_kernel(ImageSums sums) {
  constexpr int kWarps = kSumThreads / kWarpSize;
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t i = std::int64_t{blockIdx.x} * kWarps + thread / kWarpSize;
  if (i >= std::int64_t{sums.slot_count} * sums.elements) return;
  sums.take(static_cast<std::int32_t>(i), thread % kWarpSize);
}

/// The loss and its slopes, of each set of sums.
struct SetLosses {
  std::int32_t classes;
  float smooth;
  const float* sums;  // [set, 3 C + 1]
  double* losses;     // [set]
  float* slopes;      // [set, 2, C]

  __device__ DiceGradient gradient(std::int32_t set) const {
    float* const of_set = slopes + std::int64_t{set} * 2 * classes;
    return {of_set, of_set + classes};
  }
  __device__ const float* sums_of(std::int32_t set) const {
    return sums + std::int64_t{set} * (3 * classes + 1);
  }
  __device__ void operator()(std::int32_t set) const {
    losses[set] = dice_loss(sums_of(set), classes, smooth, gradient(set));
  }
};

/// How the images share in the loss.
struct ImageShares {
  SetLosses sets;
  std::int32_t images;
  bool whole;  // one set for all
  DeviceScalar<double> normalizer;
  DeviceScalar<float> grad_scale;
  const float* sample_weights;

  __device__ std::int32_t set_of(std::int32_t image) const { return whole ? 0 : image; }
  __device__ double share(std::int32_t image) const {
    const double all = normalizer.get();
    return all == 0 ? 0 : static_cast<double>(weight_of(sample_weights, image)) / all;
  }
  __device__ float slope(std::int32_t image) const {
    const float weight = sets.sums_of(set_of(image))[3 * sets.classes];
    return grad_scale.get() * static_cast<float>(share(image) * static_cast<double>(weight));
  }
};

struct AddImages {
  ImageShares shares;
  double* loss;
  double* image_losses;

  __device__ void operator()(std::int32_t) const {
    for (std::int32_t image = 0; image < shares.images; ++image) {
      const double added = shares.share(image) * shares.sets.losses[shares.set_of(image)];
      if (image_losses != nullptr) image_losses[image] += added;
      *loss += added;
    }
  }
};

template <typename T>
struct PixelGradient {
  LabelledPixels<T> all;
  ImageShares shares;
  Rows<T> gradient;

  __device__ void operator()(std::int32_t pixel) const {
    const std::int32_t image = pixel / all.image_pixels;
    const int label = *all.labels.row(pixel);
    const bool ignored = all.ignored(pixel);
    const float share = ignored ? 0.0F : shares.slope(image);
    const DiceGradient slopes = shares.sets.gradient(shares.set_of(image));
    const auto slope_of = [&](std::int32_t c) {
      return slopes.predicted[c] + (c == label ? slopes.overlap[c] : 0.0F);
    };
    float mean = 0;
    for (std::int32_t c = 0; c < all.classes; ++c) mean += all.probability(pixel, c) * slope_of(c);
    T* to = gradient.row(pixel);
    for (std::int32_t c = 0; c < all.classes; ++c) {
      const float value = share * all.probability(pixel, c) * (slope_of(c) - mean);
      to[c] = from_float<T>(ignored ? 0.0F : value);
    }
  }
};

std::size_t softmax_bytes(const Shape& logits) {
  return static_cast<std::size_t>(2 * logits.rows()) * sizeof(float);
}

void check_dice(const char* operation, const Shape& shape) {
  const std::int64_t chunks = (shape.rows_per_sample() + kChunkPixels - 1) / kChunkPixels;
  const std::int64_t sums = shape.batch() * (3 * chunks * shape.channels() + 1);
  LOCKSTEP_CHECK(shape.rows() <= kMaxItems && sums <= kMaxItems, operation, ": expected at most ",
                 kMaxItems, " pixels, and as many sums (3 of each image, class and ", kChunkPixels,
                 " pixels), got ", to_string(shape));
}

template <typename T>
LabelledPixels<T> pixels_of(const Tensor& logits, const Tensor& labels, int ignore_index,
                            float* softmax) {
  return {static_cast<std::int32_t>(logits.shape.batch()),
          static_cast<std::int32_t>(logits.shape.rows_per_sample()),
          static_cast<std::int32_t>(logits.shape.channels()),
          ignore_index,
          Rows<const T>(logits),
          Rows<const std::uint16_t>(labels),
          softmax};
}

}  // namespace

void GpuLosses::dice_sums(const DiceSums& arguments) {
  check_operands(arguments);
  const Context& context = context_.entered();
  const Shape& shape = arguments.logits.shape;
  if (shape.rows() == 0) return;
  check_dice("dice_sums", shape);
  const auto images = static_cast<std::int32_t>(shape.batch());
  const auto classes = static_cast<std::int32_t>(shape.channels());
  const auto chunks =
      static_cast<std::int32_t>((shape.rows_per_sample() + kChunkPixels - 1) / kChunkPixels);
  const std::size_t partials = static_cast<std::size_t>(images) * static_cast<std::size_t>(chunks) *
                               static_cast<std::size_t>(3 * classes) * sizeof(double);
  auto* const scratch = static_cast<std::byte*>(context.scratch(partials + softmax_bytes(shape)));
  with_element_type(arguments.logits.dtype, [&](auto element) {
    using T = decltype(element);
    const auto all = pixels_of<T>(arguments.logits, arguments.labels, arguments.ignore_index,
                                  reinterpret_cast<float*>(scratch + partials));
    auto* const sums = reinterpret_cast<double*>(scratch);
    for_each(context, all.pixels(), PixelSoftmax<T>{all});
    for_each(context, images * chunks * classes, ChunkSums<T>{all, chunks, sums});
    const std::int32_t elements = 3 * classes + 1;
    const std::int32_t slot_images = arguments.by_image ? 1 : images;
    const std::int32_t slots = images / slot_images;
    launch(image_sums_kernel,
           blocks_for(std::int64_t{slots} * elements * kWarpSize, kSumThreads, kMaxItems),
           kSumThreads, context.stream,
           ImageSums{slots, elements, slot_images, chunks, sums, arguments.sample_weights,
                     arguments.slots});
  });
}

void GpuLosses::dice_losses(const DiceLosses& arguments) {
  check_operands(arguments);
  check_parts(context_, "dice_losses", arguments.image_losses == nullptr);
  const Context& context = context_.entered();
  const Shape& shape = arguments.logits.shape;
  if (shape.rows() == 0) return;
  check_dice("dice_losses", shape);
  const auto classes = static_cast<std::int32_t>(shape.channels());
  const auto sets = static_cast<std::int32_t>(arguments.sums.shape.batch());
  const auto set_count = static_cast<std::size_t>(sets);
  const std::size_t losses = set_count * sizeof(double);
  const std::size_t slopes = set_count * static_cast<std::size_t>(2 * classes) * sizeof(float);
  auto* const scratch =
      static_cast<std::byte*>(context.scratch(losses + slopes + softmax_bytes(shape)));
  const SetLosses of_sets{classes, arguments.smooth, arguments.sums.floats(),
                          reinterpret_cast<double*>(scratch),
                          reinterpret_cast<float*>(scratch + losses)};
  const ImageShares shares{of_sets,
                           static_cast<std::int32_t>(shape.batch()),
                           sets == 1,
                           arguments.normalizer,
                           arguments.grad_scale,
                           arguments.sample_weights};
  for_each(context, sets, of_sets);
  for_each(context, 1, AddImages{shares, arguments.loss, arguments.image_losses});
  if (!arguments.grad_logits) return;
  with_element_type(arguments.logits.dtype, [&](auto element) {
    using T = decltype(element);
    const auto all = pixels_of<T>(arguments.logits, arguments.labels, arguments.ignore_index,
                                  reinterpret_cast<float*>(scratch + losses + slopes));
    for_each(context, all.pixels(), PixelSoftmax<T>{all});
    for_each(context, all.pixels(), PixelGradient<T>{all, shares, Rows<T>(arguments.grad_logits)});
  });
}

}  // namespace lockstep::gpu
