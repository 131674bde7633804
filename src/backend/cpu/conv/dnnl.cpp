// Convolutions by oneDNN.

#include "backend/cpu/conv/dnnl.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl_version.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cpu/conv/dnnl_pass.h"
#include "backend/cpu/conv/trial_values.h"
#include "backend/cpu/map.h"
#include "backend/cpu/parallel_for.h"
#include "core/image_tree.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace dnnl_pass;

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

memory::desc describe(const memory::dims& dims, memory::format_tag tag,
                      DType dtype = DType::kFloat32) {
  const bool bf16 = dtype == DType::kBFloat16;
  return {dims, bf16 ? memory::data_type::bf16 : memory::data_type::f32, tag};
}

/// What all passes are described by. The implementation chooses the weights' layout and that of
/// their gradient, which is fp32 as the user's weights are.
struct Description {
  memory::desc x, weight_any, gradient_any, weight_oihw, gradient_oihw, bias, y;
  memory::dims strides, dilations, padding;

  Description(const ConvGeometry& g, const Shape& input, DType dtype) {
    const Shape output = g.output_shape(input);
    x = describe({input.batch(), input.channels(), input.height(), input.width()},
                 memory::format_tag::nhwc, dtype);
    y = describe({output.batch(), output.channels(), output.height(), output.width()},
                 memory::format_tag::nhwc, dtype);
    bias = describe({g.out_channels}, memory::format_tag::x);
    memory::dims weight{g.out_channels, g.in_channels / g.groups, g.kernel_h, g.kernel_w};
    if (g.groups > 1) {
      weight.front() /= g.groups;
      weight.insert(weight.begin(), g.groups);
    }
    weight_any = describe(weight, memory::format_tag::any, dtype);
    gradient_any = describe(weight, memory::format_tag::any);
    const auto oihw = g.groups > 1 ? memory::format_tag::goihw : memory::format_tag::oihw;
    weight_oihw = describe(weight, oihw, dtype);
    gradient_oihw = describe(weight, oihw);
    strides = {g.stride_h, g.stride_w};
    dilations = {g.dilation_h - 1, g.dilation_w - 1};  // oneDNN counts the elements skipped
    padding = {g.padding_h, g.padding_w};
  }
};

constexpr auto kDirect = dnnl::algorithm::convolution_direct;

Forward::primitive_desc describe_forward(const Description& d, const dnnl::engine& engine) {
  const auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  return {engine, kind,      kDirect,     d.x,       d.weight_any, d.bias,
          d.y,    d.strides, d.dilations, d.padding, d.padding,    user_scratchpad()};
#else
  return {
      {kind, kDirect, d.x, d.weight_any, d.bias, d.y, d.strides, d.dilations, d.padding, d.padding},
      user_scratchpad(),
      engine};
#endif
}

BackwardData::primitive_desc describe_backward_data(const Description& d,
                                                    const dnnl::engine& engine,
                                                    const Forward::primitive_desc& hint) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine,    kDirect,   d.x,  d.weight_any,     d.y, d.strides, d.dilations,
          d.padding, d.padding, hint, user_scratchpad()};
#else
  return {{kDirect, d.x, d.weight_any, d.y, d.strides, d.dilations, d.padding, d.padding},
          user_scratchpad(),
          engine,
          hint};
#endif
}

BackwardWeights::primitive_desc describe_backward_weights(const Description& d,
                                                          const dnnl::engine& engine,
                                                          const Forward::primitive_desc& hint) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine,    kDirect,   d.x,  d.gradient_any,   d.y, d.strides, d.dilations,
          d.padding, d.padding, hint, user_scratchpad()};
#else
  return {{kDirect, d.x, d.gradient_any, d.y, d.strides, d.dilations, d.padding, d.padding},
          user_scratchpad(),
          engine,
          hint};
#endif
}

/// From one image of a dense tensor to the next.
std::int64_t image_bytes(const Tensor& tensor) {
  return tensor.shape.rows_per_sample() * tensor.shape.channels() *
         static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// The gradient of the weights. oneDNN's own sum over a batch depends on the number of threads, and
/// so does that over the pixels of one image; one image on one thread does not. The images'
/// gradients, in oneDNN's layout, go into a tree.
class DnnlWeightGradient {
 public:
  DnnlWeightGradient(const ConvGeometry& geometry, const Shape& input, int threads, DType dtype)
      : images_(input.batch()),
        threads_(static_cast<int>(std::min<std::int64_t>(threads, images_))),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        image_(geometry, input.with_batch(1), dtype),
        desc_(describe()),
        pass_(BackwardWeights(desc_), engine_,
              {{DNNL_ARG_SRC, image_.x},
               {DNNL_ARG_DIFF_DST, image_.y},
               {DNNL_ARG_DIFF_WEIGHTS, desc_.diff_weights_desc()}},
              desc_.scratchpad_desc(), threads_),
        reorder_(make_reorder(desc_.diff_weights_desc(), image_.gradient_oihw, engine_, true)),
        floats_(
            static_cast<std::int64_t>(aligned(pass_.bytes(DNNL_ARG_DIFF_WEIGHTS)) / sizeof(float))),
        wave_(std::clamp<std::int64_t>(kWaveFloats / floats_, threads_, images_)) {}

  std::size_t scratch_bytes() const {
    const std::int64_t gradients = (wave_ + image_tree_nodes(images_)) * floats_;
    return static_cast<std::size_t>(gradients) * sizeof(float) + pass_.scratch_bytes() +
           aligned(reorder_.bytes(DNNL_ARG_SCRATCHPAD));
  }

  /// x and grad_y dense.
  void run(const Tensor& x, const Tensor& grad_y, float* grad_weight, Pieces pieces) {
    const auto take = [&](std::int64_t gradients) {
      return static_cast<float*>(
          pieces.take(static_cast<std::size_t>(gradients * floats_) * sizeof(float)));
    };
    float* gradients = take(wave_);
    float* tree = take(image_tree_nodes(images_));
    for (std::int64_t first = 0; first < images_; first += wave_) {
      const std::int64_t count = std::min(wave_, images_ - first);
      const std::array operands{
          PassOperand{DNNL_ARG_SRC, x.sample_range(first, count).data, image_bytes(x)},
          PassOperand{DNNL_ARG_DIFF_DST, grad_y.sample_range(first, count).data,
                      image_bytes(grad_y)},
          PassOperand{DNNL_ARG_DIFF_WEIGHTS, gradients,
                      floats_ * static_cast<std::int64_t>(sizeof(float))}};
      pass_.run(count, operands, pieces);
      add_to_tree(first, count, gradients, tree);
    }
    run_reorder(reorder_, tree, grad_weight, pieces, stream_);
  }

 private:
  // Of gradients that wait to be added: few enough for a last-level cache, but one for each thread.
  static constexpr std::int64_t kWaveFloats = 2 << 20;
  static constexpr std::int64_t kChunk = 2048;  // elements that stay in a first-level cache

  static std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  BackwardWeights::primitive_desc describe() const {
    const OneThread of_each_image;
    return describe_backward_weights(image_, engine_, describe_forward(image_, engine_));
  }

  void add_to_tree(std::int64_t first, std::int64_t count, const float* gradients, float* tree) {
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::int64_t begin = 0; begin < floats_; begin += kChunk) {
      const std::int64_t size = std::min(kChunk, floats_ - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        add_image(first + i, gradients + i * floats_ + begin, size, tree + begin, floats_);
      }
      if (first + count == images_) finish_image_tree(images_, size, tree + begin, floats_);
    }
  }

  const std::int64_t images_;
  const int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const Description image_;
  const BackwardWeights::primitive_desc desc_;
  BatchPass pass_;
  Executable reorder_;
  const std::int64_t floats_;  // of a gradient in oneDNN's layout, padded to a cache line
  const std::int64_t wave_;    // images whose gradients are computed before they are added
};

/// A pass that reads the weights, and the reorder of the weights before it.
struct WeightedPass {
  BatchPass main;
  Executable reorder;

  std::size_t scratch_bytes() const {
    Pieces pieces(nullptr);
    pieces.take(main.bytes(DNNL_ARG_WEIGHTS));
    Pieces reordering = pieces;
    reordering.take(reorder.bytes(DNNL_ARG_FROM));
    reordering.take(reorder.bytes(DNNL_ARG_SCRATCHPAD));
    return std::max(reordering.used(), pieces.used() + main.scratch_bytes());
  }
};

/// Which passes over a batch have been found to give the bits of single images; for all threads.
class KnownBits {
 public:
  struct Problem {
    ConvGeometry geometry;
    Shape input;
    DType dtype;
    ConvPass pass;
    int threads;
    friend bool operator==(const Problem&, const Problem&) = default;
  };

  template <typename Try>
  bool same(const Problem& problem, const Try& by_trial) {
    const std::scoped_lock lock(mutex_);
    for (const auto& [known, same] : answers_) {
      if (known == problem) return same;
    }
    return answers_.emplace_back(problem, by_trial()).second;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Problem, bool>> answers_;
};

class DnnlConvolution final : public Convolution {
 public:
  DnnlConvolution(const ConvGeometry& geometry, const Shape& input, int threads, DType dtype)
      : geometry_(geometry),
        threads_(threads),
        dtype_(dtype),
        input_(input),
        output_(geometry.output_shape(input)),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        zero_bias_(static_cast<std::size_t>(geometry.out_channels), 0.0F) {}

  void prepare(ConvPass pass) override {
    switch (pass) {
      case ConvPass::kForward:
        if (!forward_) forward_.emplace(make_forward());
        break;
      case ConvPass::kBackwardData:
        if (!backward_data_) backward_data_.emplace(make_backward_data());
        break;
      case ConvPass::kBackwardWeights:
        if (!backward_weights_) backward_weights_.emplace(geometry_, input_, threads_, dtype_);
        break;
    }
  }

  std::size_t scratch_bytes(ConvPass pass, bool strided) const override {
    const std::size_t copies =
        strided ? copy_bytes(input_, dtype_) + copy_bytes(output_, dtype_) : 0;
    switch (pass) {
      case ConvPass::kForward:
        return copies + forward_->scratch_bytes();
      case ConvPass::kBackwardData:
        return copies + backward_data_->scratch_bytes();
      case ConvPass::kBackwardWeights:
        return copies + backward_weights_->scratch_bytes();
    }
    return 0;
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    const float* added = bias != nullptr ? bias : zero_bias_.data();
    run(*forward_, {DNNL_ARG_SRC, x}, weight, added, {DNNL_ARG_DST, y}, scratch);
    if (done) parallel_for(y.shape.rows(), y.shape.channels(), threads_, done);
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    run(*backward_data_, {DNNL_ARG_DIFF_DST, grad_y}, weight, nullptr, {DNNL_ARG_DIFF_SRC, grad_x},
        scratch);
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    Pieces pieces(scratch);
    const Tensor dense_x = dense_input(x, pieces), dense_y = dense_input(grad_y, pieces);
    backward_weights_->run(dense_x, dense_y, grad_weight, pieces);
  }

 private:
  struct Named {
    int id;
    Tensor tensor;
  };

  /// `bias`: null where the pass takes none.
  void run(WeightedPass& pass, Named from, const float* weight, const float* bias, Named to,
           void* scratch) {
    Pieces pieces(scratch);
    void* reordered = pieces.take(pass.main.bytes(DNNL_ARG_WEIGHTS));
    reorder_weights(pass.reorder, weight, reordered, pieces);
    const Tensor source = dense_input(from.tensor, pieces), result = dense(to.tensor, pieces);
    const std::array<PassOperand, 4> operands{{{DNNL_ARG_WEIGHTS, reordered, 0},
                                               {from.id, source.data, image_bytes(source)},
                                               {to.id, result.data, image_bytes(result)},
                                               {DNNL_ARG_BIAS, bias, 0}}};
    const std::size_t count = bias != nullptr ? 4 : 3;
    pass.main.run(result.shape.batch(), {operands.data(), count}, pieces);
    convert(result, to.tensor, false, threads_);
  }

  void reorder_weights(Executable& reorder, const float* weight, void* to, Pieces pieces) {
    const void* from = weight;
    if (dtype_ == DType::kBFloat16) {
      const std::int64_t rows = geometry_.out_channels;
      from = rounded_weights(weight, {1, 1, rows, geometry_.weight_elements() / rows}, pieces,
                             threads_);
    }
    run_reorder(reorder, from, to, pieces, stream_);
  }

  /// oneDNN's fast NHWC kernels want dense rows: the tensor itself where its rows are, else room
  /// for a copy.
  static Tensor dense(const Tensor& tensor, Pieces& pieces) {
    if (tensor.dense()) return tensor;
    return {pieces.take(copy_bytes(tensor.shape, tensor.dtype)), tensor.shape, tensor.dtype};
  }
  Tensor dense_input(const Tensor& tensor, Pieces& pieces) const {
    const Tensor copy = dense(tensor, pieces);
    convert(tensor, copy, false, threads_);
    return copy;
  }

  /// make(description, primitive's, workers): the pass for the whole batch, or by image where the
  /// former's bits would not be those of an image by itself on one thread.
  template <typename Describe, typename Make>
  WeightedPass make_pass(ConvPass pass, const Describe& describe, const Make& make) {
    const Description batch(geometry_, input_, dtype_);
    const auto of_batch = describe(batch);
    if (threads_ == 1 && input_.batch() == 1) return make(batch, of_batch, 0);
    WeightedPass by_image = [&] {
      const OneThread of_each_image;
      const Description image(geometry_, input_.with_batch(1), dtype_);
      const auto workers = static_cast<int>(std::min<std::int64_t>(threads_, input_.batch()));
      return make(image, describe(image), workers);
    }();
    // Without a trial where images share the threads evenly and are so large that one primitive of
    // all of them would gain nothing by it, but the trial would need much memory.
    const bool large = input_.elements() + output_.elements() > kTrialFloats;
    if (depends_on_threads(of_batch) || (large && input_.batch() % threads_ == 0)) return by_image;
    WeightedPass whole = make(batch, of_batch, 0);
    static KnownBits known;  // replicas have the same convolutions
    const KnownBits::Problem problem{geometry_, input_, dtype_, pass, threads_};
    return known.same(problem, [&] { return same_bits(pass, whole, by_image); }) ? whole : by_image;
  }

  static constexpr std::int64_t kTrialFloats = 4 << 20;

  /// By trial, on a batch of one image again and again: what kernel oneDNN takes for a part of the
  /// work, and with it the order of sums, may depend on how the threads share it.
  bool same_bits(ConvPass pass, WeightedPass& whole, WeightedPass& by_image) {
    const bool forward = pass == ConvPass::kForward;
    const Shape from = forward ? input_ : output_, to = forward ? output_ : input_;
    const int from_id = forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST;
    const int to_id = forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC;
    const float* bias = forward ? zero_bias_.data() : nullptr;
    const TrialValues weight(geometry_.weight_elements());
    const TrialValues operand(from.elements(), from.batch(), dtype_);
    const TrialValues results(to.elements(), 0, dtype_);
    const TrialValues one(to.with_batch(1).elements(), 0, dtype_);
    const std::size_t bytes = std::max(whole.scratch_bytes(), by_image.scratch_bytes());
    const TrialValues scratch(static_cast<std::int64_t>(bytes / sizeof(float) + 1), 0);
    const Tensor all = results.tensor(to, dtype_), alone = one.tensor(to.with_batch(1), dtype_);
    run(whole, {from_id, operand.tensor(from, dtype_)}, weight.floats(), bias, {to_id, all},
        scratch.floats());
    run(by_image, {from_id, operand.tensor(from.with_batch(1), dtype_)}, weight.floats(), bias,
        {to_id, alone}, scratch.floats());
    const auto image = static_cast<std::size_t>(image_bytes(alone));
    for (std::int64_t i = 0; i < to.batch(); ++i) {
      if (std::memcmp(all.sample_range(i, 1).data, alone.data, image) != 0) return false;
    }
    return true;
  }

  WeightedPass make_forward() {
    return make_pass(
        ConvPass::kForward, [&](const Description& d) { return describe_forward(d, engine_); },
        [&](const Description& d, const auto& desc, int workers) {
          const memory::desc weight = desc.weights_desc();
          return WeightedPass{BatchPass(Forward(desc), engine_,
                                        {{DNNL_ARG_SRC, d.x},
                                         {DNNL_ARG_WEIGHTS, weight},
                                         {DNNL_ARG_BIAS, d.bias},
                                         {DNNL_ARG_DST, d.y}},
                                        desc.scratchpad_desc(), workers),
                              make_reorder(d.weight_oihw, weight, engine_, false)};
        });
  }

  WeightedPass make_backward_data() {
    const auto describe = [&](const Description& d) {
      return describe_backward_data(d, engine_, describe_forward(d, engine_));
    };
    return make_pass(ConvPass::kBackwardData, describe,
                     [&](const Description& d, const auto& desc, int workers) {
                       const memory::desc weight = desc.weights_desc();
                       return WeightedPass{BatchPass(BackwardData(desc), engine_,
                                                     {{DNNL_ARG_DIFF_DST, d.y},
                                                      {DNNL_ARG_WEIGHTS, weight},
                                                      {DNNL_ARG_DIFF_SRC, d.x}},
                                                     desc.scratchpad_desc(), workers),
                                           make_reorder(d.weight_oihw, weight, engine_, false)};
                     });
  }

  const ConvGeometry geometry_;
  const int threads_;
  const DType dtype_;
  const Shape input_, output_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const std::vector<float> zero_bias_;
  std::optional<WeightedPass> forward_, backward_data_;
  std::optional<DnnlWeightGradient> backward_weights_;
};

}  // namespace

std::unique_ptr<Convolution> make_dnnl_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads, DType dtype) {
  return std::make_unique<DnnlConvolution>(geometry, input, threads, dtype);
}

bool dnnl_computes_bf16() {
#ifdef __AVX512F__
  static const bool computes = [] {
    const Description description({.in_channels = 16, .out_channels = 16}, {1, 8, 8, 16},
                                  DType::kBFloat16);
    try {
      const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
      describe_backward_weights(description, engine, describe_forward(description, engine));
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return computes;
#else
  return false;  // it takes AVX-512
#endif
}

std::string dnnl_bf16_instructions() {
  if (!dnnl_computes_bf16()) return "";
  // A set of instructions has the bits of all that are in it.
  static const auto has = [](dnnl::cpu_isa set) {
    const auto all = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    return (all & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  if (has(dnnl::cpu_isa::avx512_core_amx)) return "AMX";
  return has(dnnl::cpu_isa::avx512_core_bf16) ? "AVX512-BF16" : "";
}

std::string dnnl_version() {
  const dnnl_version_t* version = ::dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch, " isa ",
                static_cast<unsigned>(dnnl::get_effective_cpu_isa()));
}

}  // namespace lockstep
