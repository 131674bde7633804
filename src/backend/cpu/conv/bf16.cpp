#include "backend/cpu/conv/bf16.h"

#include <omp.h>

#include <algorithm>

#include "backend/cpu/conv/bf16/strip.h"
#include "backend/cpu/conv/bf16/strip_product.h"
#include "backend/cpu/conv/bf16/strip_sums.h"
#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/conv/products/weight_gradient.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace bf16;
using matmul::Slices;
using matmul::SumTask;

// Channels of a sum of the weights' gradient, which stays in a second-level cache.
constexpr std::int64_t kSliceChannels = 512, kSliceChannelsOfTaps = 192;
// Parts of an image's gradient, so that threads have work when images and slices are few.
constexpr std::int64_t kMaxParts = 8, kPixelsPerPart = 2048;

class Bf16Convolution final : public Convolution {
 public:
  Bf16Convolution(const ConvGeometry& geometry, const Shape& input, int threads,
                  Instructions instructions)
      : geometry_(geometry),
        threads_(threads),
        instructions_(instructions),
        forward_(Strip::forward(geometry, input), geometry.in_channels, geometry.out_channels,
                 input.batch(), threads),
        data_(Strip::backward_data(geometry, input), geometry.out_channels, geometry.in_channels,
              input.batch(), threads),
        slice_(geometry.kernel_h * geometry.kernel_w == 1 ? kSliceChannels : kSliceChannelsOfTaps),
        sums_(Strip::forward(geometry, input), widest_slice()),
        gradient_(geometry, out_slices(), in_slices(),
                  std::clamp<std::int64_t>(
                      geometry.output_shape(input).rows_per_sample() / kPixelsPerPart, 1,
                      std::min(kMaxParts, geometry.output_shape(input).height())),
                  input.batch(), threads) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    const std::int64_t floats = pass == ConvPass::kBackwardWeights
                                    ? gradient_.scratch_floats(sums_.floats())
                                    : scratch_floats(product_of(pass));
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    const std::int64_t taps = geometry_.kernel_h * geometry_.kernel_w;
    multiply(forward_, x, {weight, geometry_.in_channels * taps, taps, false}, bias, y, done,
             static_cast<float*>(scratch));
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    const std::int64_t taps = geometry_.kernel_h * geometry_.kernel_w;
    multiply(data_, grad_y, {weight, taps, geometry_.in_channels * taps, true}, nullptr, grad_x,
             nullptr, static_cast<float*>(scratch));
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    if (x.shape.batch() == 0) return;
    const auto sum = [&](const SumTask& task, bool add, float* to, float* memory) {
      const Products products(instructions_);
      sums_(products, task, gradient_.parts(), x, grad_y, add, to, memory);
    };
    gradient_.add(x.shape.batch(), sum, sums_.floats(), grad_weight, static_cast<float*>(scratch));
  }

 private:
  Slices out_slices() const { return {geometry_.out_channels, slice_}; }
  Slices in_slices() const { return {geometry_.in_channels, slice_}; }
  std::int64_t widest_slice() const {
    return up(std::max(out_slices().size(), in_slices().size()), kGroup);
  }
  const StripProduct& product_of(ConvPass pass) const {
    return pass == ConvPass::kForward ? forward_ : data_;
  }
  std::int64_t scratch_floats(const StripProduct& product) const {
    return floats_of(product.packed_numbers()) + threads_ * product.task_floats();
  }

  void multiply(const StripProduct& product, const Tensor& from, const Weights& weights,
                const float* bias, const Tensor& to, const RowsDone& done, float* scratch) const {
    auto* packed = reinterpret_cast<Number*>(scratch);
    float* memory = scratch + floats_of(product.packed_numbers());
    const std::int64_t columns = to.shape.channels(), tasks = product.tasks(to.shape.batch());
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
#pragma omp for schedule(static)
      for (std::int64_t first = 0; first < columns; first += kGroup) {
        product.pack(weights, first, packed);
      }
      const Products products(instructions_);
#pragma omp for schedule(dynamic)
      for (std::int64_t task = 0; task < tasks; ++task) {
        product.run(products, task, from, packed, bias, to, done,
                    memory + omp_get_thread_num() * product.task_floats());
      }
    }
  }

  const ConvGeometry geometry_;
  const int threads_;
  const Instructions instructions_;
  const StripProduct forward_, data_;
  const std::int64_t slice_;
  const StripSums sums_;
  const matmul::WeightGradient gradient_;
};

}  // namespace

bool bf16_supports(const ConvGeometry& g) {
  return g.groups == 1 && g.stride_h == g.stride_w &&
         g.padding_h <= g.dilation_h * (g.kernel_h - 1) &&
         g.padding_w <= g.dilation_w * (g.kernel_w - 1);
}

std::unique_ptr<Convolution> make_bf16_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads, Instructions instructions) {
  LOCKSTEP_CHECK(bf16_supports(geometry), "no products of bf16 numbers for a ",
                 to_string(geometry));
  LOCKSTEP_CHECK(usable(instructions), "this processor has no such products of bf16 numbers");
  return std::make_unique<Bf16Convolution>(geometry, input, threads, instructions);
}

}  // namespace lockstep
