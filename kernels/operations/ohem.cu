// The choice of hard pixels (OhemCrossEntropyLoss). The probability of a label is a thread's work.
// Labels are counted by bins, and by classes, in shared memory, and the counts of blocks are added
// up: whole numbers, in any order. One block goes from the counts of all ranks to the next bits of
// the threshold.

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/formulas.h"
#include "backend/operands.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/launchers.h"
#include "kernels/operations/slot_sums.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

template <typename T>
struct LabelProbability {
  std::int32_t classes;
  int ignore_index;
  Rows<const T> logits;
  Rows<const std::uint16_t> labels;
  float* probabilities;

  /// That of a label which is no class is 0, and so is one that is not a number: what is broken is
  /// not passed over.
  __device__ float of(const T* values, int label) const {
    if (label >= classes) return 0;
    float largest = to_float(values[0]);
    for (std::int32_t c = 1; c < classes; ++c) {
      const float logit = to_float(values[c]);
      largest = logit > largest ? logit : largest;
    }
    float sum = 0, own = 0;
    for (std::int32_t c = 0; c < classes; ++c) {
      const float exponential = std::exp(to_float(values[c]) - largest);
      sum += exponential;
      own = c == label ? exponential : own;
    }
    const float p = own / sum;
    return p >= 0 ? p : 0.0F;
  }
  __device__ void operator()(std::int32_t row) const {
    const int label = *labels.row(row);
    probabilities[row] = label == ignore_index ? kNoLabel : of(logits.row(row), label);
  }
};

struct Bins {
  unsigned counts[kOhemBins];
};

/// counts [kOhemBins] += the rows' labels that begin with the state's prefix.
__global__ void count_kernel(const float* probabilities, std::int64_t rows, int round,
                             const OhemState* state, unsigned* counts) {
  Bins& own = block_shared<Bins>();
  for (unsigned i = threadIdx.x; i < kOhemBins; i += blockDim.x) own.counts[i] = 0;
  __syncthreads();
  const OhemRound bits_now(round);
  const std::uint32_t prefix = round == 0 ? 0U : state->prefix;
  for (std::int64_t row = first_item(); row < rows; row += item_stride()) {
    const float p = probabilities[row];
    const auto bits = std::bit_cast<std::uint32_t>(p);
    if (p == kNoLabel || !bits_now.begins_with(bits, prefix)) continue;
    atomicAdd(own.counts + bits_now.bin_of(bits), 1U);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kOhemBins; i += blockDim.x) {
    if (own.counts[i] > 0) atomicAdd(counts + i, own.counts[i]);
  }
}

struct WriteCounts {
  const unsigned* counts;
  std::int64_t samples;
  float* slot;

  __device__ void operator()(std::int32_t i) const {
    const SplitSum split(i < kOhemBins ? static_cast<double>(counts[i])
                                       : static_cast<double>(samples));
    slot[i] = split.nearest;
    slot[kOhemCounts + i] = split.rest;
  }
};

constexpr int kSegments = 64;  // of the bins
constexpr int kSegmentBins = kOhemBins / kSegments;

struct Counts {
  double bins[kOhemCounts];
  double segments[kSegments];
};

/// The bin in which the threshold is; what lies before it is taken off `before`. A segment is left
/// behind where all of its bins are.
__device__ std::uint32_t find_bin(const Counts& counts, double& before) {
  int segment = 0;
  while (segment + 1 < kSegments && before >= counts.segments[segment]) {
    before -= counts.segments[segment++];
  }
  int bin = segment * kSegmentBins;
  while (bin + 1 < kOhemBins && before >= counts.bins[bin]) before -= counts.bins[bin++];
  return static_cast<std::uint32_t>(bin);
}

/// One block.
__global__ void narrow_kernel(SlotSums slots, int round, double min_kept, float thresh,
                              OhemState* result) {
  Counts& counts = block_shared<Counts>();
  for (int i = static_cast<int>(threadIdx.x); i < kOhemCounts; i += static_cast<int>(blockDim.x)) {
    counts.bins[i] = slots.sum(i, kOhemCounts);
  }
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < kSegments; s += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (int i = 0; i < kSegmentBins; ++i) sum += counts.bins[s * kSegmentBins + i];
    counts.segments[s] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  OhemState state = *result;
  if (round == 0) {
    double labels = 0;
    for (const double segment : counts.segments) labels += segment;
    begin_ohem(labels, min_kept * counts.bins[kOhemBins], state);
  }
  state.prefix |= find_bin(counts, state.before) << OhemRound(round).shift;
  if (round + 1 == kOhemRounds) finish_ohem(std::bit_cast<float>(state.prefix), thresh, state);
  *result = state;
}

struct Choice {
  std::int32_t image_rows, classes;
  Rows<const std::uint16_t> labels;
  const float* sample_weights;
  const OhemState* state;
  float* rows;
  unsigned* counts;  // [image, 2, C]: pixels that are chosen, and that have a label
};

struct ClassCounts {
  unsigned values[2 * kMaxClasses];
};

/// A block's x says which rows of an image it takes, its y which images.
__global__ void choose_kernel(Choice choice, std::int32_t images) {
  ClassCounts& own = block_shared<ClassCounts>();
  const auto classes = static_cast<unsigned>(choice.classes);
  const float threshold = choice.state->threshold;
  for (auto image = static_cast<std::int32_t>(blockIdx.y); image < images;
       image += static_cast<std::int32_t>(gridDim.y)) {
    for (unsigned i = threadIdx.x; i < 2 * classes; i += blockDim.x) own.values[i] = 0;
    __syncthreads();
    const float weight = weight_of(choice.sample_weights, image);
    const std::int64_t first = std::int64_t{image} * choice.image_rows;
    for (std::int64_t i = first_item(); i < choice.image_rows; i += item_stride()) {
      const float probability = choice.rows[first + i];
      const unsigned label = *choice.labels.row(first + i);
      const bool chosen = probability < threshold;
      choice.rows[first + i] = chosen ? weight : 0.0F;
      if (probability == kNoLabel || label >= classes) continue;
      if (chosen) atomicAdd(own.values + label, 1U);
      atomicAdd(own.values + classes + label, 1U);
    }
    __syncthreads();
    // A thread sets to zero, for the next image, what it has added up itself.
    for (unsigned i = threadIdx.x; i < 2 * classes; i += blockDim.x) {
      if (own.values[i] == 0) continue;
      atomicAdd(choice.counts + std::int64_t{image} * 2 * classes + i, own.values[i]);
    }
  }
}

/// Slots of so many images each.
struct WriteWeights {
  std::int32_t elements, slot_images;
  const unsigned* counts;  // [image, 2, C]
  const float* sample_weights;
  float* slots;

  __device__ void operator()(std::int32_t i) const {
    const std::int32_t slot = i / elements, element = i - slot * elements;
    double sum = 0;
    for (std::int32_t image = slot * slot_images; image < (slot + 1) * slot_images; ++image) {
      sum += static_cast<double>(counts[std::int64_t{image} * elements + element]) *
             static_cast<double>(weight_of(sample_weights, image));
    }
    const SplitSum split(sum);
    float* to = slots + std::int64_t{slot} * 2 * elements;
    to[element] = split.nearest;
    to[elements + element] = split.rest;
  }
};

struct AddSlots {
  SlotSums slots;
  std::int32_t elements;
  double* sums;

  __device__ void operator()(std::int32_t i) const { sums[i] = slots.sum(i, elements); }
};

struct Normalizer {
  const double* weights;
  std::int32_t classes;
  const float* class_weight;
  DeviceScalar<double> normalizer;
  OhemState* state;

  __device__ void operator()(std::int32_t) const {
    state->normalizer = ohem_normalizer(weights, classes, class_weight, normalizer.get());
  }
};

}  // namespace

void GpuLosses::label_probabilities(const LabelProbabilities& arguments) {
  check_operands(arguments);
  const Context& context = context_.entered();
  const Shape& shape = arguments.logits.shape;
  if (shape.rows() == 0) return;
  LOCKSTEP_CHECK(shape.rows() <= kMaxItems, "label_probabilities: expected at most ", kMaxItems,
                 " pixels, got ", to_string(shape));
  with_element_type(arguments.logits.dtype, [&](auto element) {
    using T = decltype(element);
    for_each(
        context, static_cast<std::int32_t>(shape.rows()),
        LabelProbability<T>{static_cast<std::int32_t>(shape.channels()), arguments.ignore_index,
                            Rows<const T>(arguments.logits),
                            Rows<const std::uint16_t>(arguments.labels), arguments.probabilities});
  });
}

void GpuLosses::ohem_count(const OhemCount& count) {
  check_operands(count);
  const Context& context = context_.entered();
  constexpr std::size_t kBytes = sizeof(Bins);
  auto* const counts = static_cast<unsigned*>(context.scratch(kBytes));
  fill(context, Tensor(counts, Shape{1, std::int64_t{kBytes}}, DType::kUInt8), 0);
  launch_loop(context, count.rows, count_kernel, count.probabilities, count.rows, count.round,
              count.state, counts);
  for_each(context, kOhemCounts, WriteCounts{counts, count.samples, count.slot});
}

void GpuLosses::ohem_narrow(const OhemNarrow& narrow) {
  check_operands(narrow);
  const Context& context = context_.entered();
  launch(narrow_kernel, 1, kLoopThreads, context.stream, SlotSums("ohem_narrow", narrow.counts),
         narrow.round, static_cast<double>(narrow.min_kept), narrow.thresh, narrow.state);
}

void GpuLosses::ohem_choose(const OhemChoice& choice) {
  check_operands(choice);
  const Context& context = context_.entered();
  const Shape& shape = choice.labels.shape;
  LOCKSTEP_CHECK(shape.rows() <= kMaxItems, "ohem_choose: expected at most ", kMaxItems,
                 " pixels, got ", to_string(shape));
  const auto images = static_cast<std::int32_t>(shape.batch());
  const auto elements = static_cast<std::int32_t>(2 * choice.classes);
  if (shape.rows() == 0) return;
  const std::size_t bytes =
      static_cast<std::size_t>(images) * static_cast<std::size_t>(elements) * sizeof(unsigned);
  auto* const counts = static_cast<unsigned*>(context.scratch(bytes));
  fill(context, Tensor(counts, Shape{1, static_cast<std::int64_t>(bytes)}, DType::kUInt8), 0);
  const Choice pixels{static_cast<std::int32_t>(shape.rows_per_sample()),
                      static_cast<std::int32_t>(choice.classes),
                      Rows<const std::uint16_t>(choice.labels),
                      choice.sample_weights,
                      choice.state,
                      choice.rows,
                      counts};
  constexpr unsigned kMostImages = 64;  // at a time
  const unsigned at_once = std::min(static_cast<unsigned>(images), kMostImages);
  const unsigned blocks =
      blocks_for(pixels.image_rows, kLoopThreads,
                 std::max<std::int64_t>(1, std::int64_t{4} * context.multiprocessors / at_once));
  launch(choose_kernel, dim3(blocks, at_once), kLoopThreads, context.stream, pixels, images);
  const std::int32_t slot_images = choice.by_image ? 1 : images;
  for_each(context, images / slot_images * elements,
           WriteWeights{elements, slot_images, counts, choice.sample_weights, choice.slots});
}

void GpuLosses::ohem_share(const OhemShare& share) {
  check_operands(share);
  const Context& context = context_.entered();
  const auto elements = static_cast<std::int32_t>(2 * share.classes);
  auto* const sums =
      static_cast<double*>(context.scratch(static_cast<std::size_t>(elements) * sizeof(double)));
  for_each(context, elements, AddSlots{{"ohem_share", share.weights}, elements, sums});
  for_each(context, 1,
           Normalizer{sums, elements / 2, share.class_weight, share.normalizer, share.state});
}

}  // namespace lockstep::gpu
