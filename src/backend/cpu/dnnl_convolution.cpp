// Convolutions by oneDNN; the only file that knows oneDNN and the difference between its versions 2
// and 3.

#include <omp.h>
#include <oneapi/dnnl/dnnl_version.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "backend/cpu/convolution.h"

namespace lockstep {
namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;

memory::desc describe(const memory::dims& dims, memory::format_tag tag) {
  return {dims, memory::data_type::f32, tag};
}

/// What all passes are described by. The implementation chooses the weights' layout.
struct Description {
  memory::desc x, weight_any, weight_oihw, bias, y;
  memory::dims strides, dilations, padding;

  Description(const ConvGeometry& g, const Shape& input) {
    const Shape output = g.output_shape(input);
    x = describe({input.batch(), input.channels(), input.height(), input.width()},
                 memory::format_tag::nhwc);
    y = describe({output.batch(), output.channels(), output.height(), output.width()},
                 memory::format_tag::nhwc);
    bias = describe({g.out_channels}, memory::format_tag::x);
    memory::dims weight{g.out_channels, g.in_channels / g.groups, g.kernel_h, g.kernel_w};
    if (g.groups > 1) {
      weight.front() /= g.groups;
      weight.insert(weight.begin(), g.groups);
    }
    weight_any = describe(weight, memory::format_tag::any);
    weight_oihw =
        describe(weight, g.groups > 1 ? memory::format_tag::goihw : memory::format_tag::oihw);
    strides = {g.stride_h, g.stride_w};
    dilations = {g.dilation_h - 1, g.dilation_w - 1};  // oneDNN counts the elements skipped
    padding = {g.padding_h, g.padding_w};
  }
};

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

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
  return {engine,    kDirect,   d.x,  d.weight_any,     d.y, d.strides, d.dilations,
          d.padding, d.padding, hint, user_scratchpad()};
#else
  return {{kDirect, d.x, d.weight_any, d.y, d.strides, d.dilations, d.padding, d.padding},
          user_scratchpad(),
          engine,
          hint};
#endif
}

/// Hands out aligned pieces of the scratch memory in order; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<std::byte*>(base)) {}

  void* take(std::size_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// A primitive with its arguments, built once: a call only changes addresses.
class Executable {
 public:
  Executable(dnnl::primitive primitive, const dnnl::engine& engine,
             std::initializer_list<std::pair<int, memory::desc>> arguments)
      : primitive_(std::move(primitive)) {
    for (const auto& [id, desc] : arguments) {
      arguments_.emplace(id, memory(desc, engine, DNNL_MEMORY_NONE));
    }
  }

  void set(int id, const void* data) {
    arguments_.at(id).set_data_handle(const_cast<void*>(data));  // oneDNN reads what is an input
  }
  void set_piece(int id, Pieces& pieces) { set(id, pieces.take(bytes(id))); }
  std::size_t bytes(int id) const { return arguments_.at(id).get_desc().get_size(); }

  void run(dnnl::stream& stream) {
    primitive_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, memory> arguments_;
};

Executable make_reorder(const memory::desc& from, const memory::desc& to,
                        const dnnl::engine& engine, bool accumulate) {
  dnnl::primitive_attr attr = user_scratchpad();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attr.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, attr);
  return {
      dnnl::reorder(desc),
      engine,
      {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}};
}

void run_reorder(Executable& reorder, const void* from, void* to, Pieces pieces,
                 dnnl::stream& stream) {
  reorder.set(DNNL_ARG_FROM, from);
  reorder.set(DNNL_ARG_TO, to);
  reorder.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
  reorder.run(stream);
}

/// One pass: the primitive and the reorder of the weights before it or of their gradient after it.
struct Pass {
  Executable main;
  Executable reorder;
};

std::size_t bytes_of(const Pass& pass, int weight_id) {
  Pieces pieces(nullptr);
  pieces.take(pass.main.bytes(weight_id));
  pieces.take(pass.main.bytes(DNNL_ARG_SCRATCHPAD));
  pieces.take(pass.reorder.bytes(DNNL_ARG_SCRATCHPAD));
  return pieces.used();
}

void copy_rows(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
               const Shape& shape, int threads) {
  const std::int64_t rows = shape.rows();
  const std::size_t bytes = static_cast<std::size_t>(shape.channels()) * sizeof(float);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * to_stride, from + r * from_stride, bytes);
  }
}

/// Room for a dense copy.
std::size_t dense_bytes(const Shape& shape) {
  return (static_cast<std::size_t>(shape.elements()) * sizeof(float) + 63) / 64 * 64;
}

class DnnlConvolution final : public Convolution {
 public:
  DnnlConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : threads_(threads),
        input_(input),
        output_(geometry.output_shape(input)),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        description_(geometry, input),
        hint_(describe_forward(description_, engine_)),
        zero_bias_(static_cast<std::size_t>(geometry.out_channels), 0.0F),
        forward_(make_forward()) {}

  void prepare_backward(bool grad_input) override {
    if (!backward_weights_) backward_weights_ = std::make_unique<Pass>(make_backward_weights());
    if (grad_input && !backward_data_) {
      backward_data_ = std::make_unique<Pass>(make_backward_data());
    }
  }

  std::size_t scratch_bytes(bool strided) const override {
    std::size_t most = bytes_of(forward_, DNNL_ARG_WEIGHTS);
    if (backward_data_) most = std::max(most, bytes_of(*backward_data_, DNNL_ARG_WEIGHTS));
    if (backward_weights_) {
      most = std::max(most, bytes_of(*backward_weights_, DNNL_ARG_DIFF_WEIGHTS));
    }
    return most + (strided ? dense_bytes(input_) + dense_bytes(output_) : 0);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch) override {
    Pieces pieces(scratch);
    Executable& main = forward_.main;
    void* reordered = pieces.take(main.bytes(DNNL_ARG_WEIGHTS));
    run_reorder(forward_.reorder, weight, reordered, pieces, stream_);
    main.set(DNNL_ARG_WEIGHTS, reordered);
    main.set(DNNL_ARG_BIAS, bias != nullptr ? bias : zero_bias_.data());
    main.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
    main.set(DNNL_ARG_SRC, dense_input(x, pieces));
    run_to(main, DNNL_ARG_DST, y, pieces);
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    Pieces pieces(scratch);
    Executable& main = backward_data_->main;
    void* reordered = pieces.take(main.bytes(DNNL_ARG_WEIGHTS));
    run_reorder(backward_data_->reorder, weight, reordered, pieces, stream_);
    main.set(DNNL_ARG_WEIGHTS, reordered);
    main.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
    main.set(DNNL_ARG_DIFF_DST, dense_input(grad_y, pieces));
    run_to(main, DNNL_ARG_DIFF_SRC, grad_x, pieces);
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    Pieces pieces(scratch);
    Executable& main = backward_weights_->main;
    void* gradient = pieces.take(main.bytes(DNNL_ARG_DIFF_WEIGHTS));
    main.set(DNNL_ARG_DIFF_WEIGHTS, gradient);
    main.set_piece(DNNL_ARG_SCRATCHPAD, pieces);
    main.set(DNNL_ARG_SRC, dense_input(x, pieces));
    main.set(DNNL_ARG_DIFF_DST, dense_input(grad_y, pieces));
    main.run(stream_);
    run_reorder(backward_weights_->reorder, gradient, grad_weight, pieces, stream_);
  }

 private:
  /// oneDNN's fast NHWC kernels want dense rows: others are copied.
  const float* dense_input(const Tensor& tensor, Pieces& pieces) const {
    if (tensor.dense()) return tensor.floats();
    auto* copy = static_cast<float*>(pieces.take(dense_bytes(tensor.shape)));
    copy_rows(tensor.floats(), tensor.row_stride, copy, tensor.shape.channels(), tensor.shape,
              threads_);
    return copy;
  }

  /// Runs the primitive with `tensor` as its result.
  void run_to(Executable& main, int id, const Tensor& tensor, Pieces& pieces) {
    float* result = tensor.dense() ? tensor.floats()
                                   : static_cast<float*>(pieces.take(dense_bytes(tensor.shape)));
    main.set(id, result);
    main.run(stream_);
    if (!tensor.dense()) {
      copy_rows(result, tensor.shape.channels(), tensor.floats(), tensor.row_stride, tensor.shape,
                threads_);
    }
  }

  Pass make_forward() const {
    const memory::desc weight = hint_.weights_desc();
    return {Executable(Forward(hint_), engine_,
                       {{DNNL_ARG_SRC, description_.x},
                        {DNNL_ARG_WEIGHTS, weight},
                        {DNNL_ARG_BIAS, description_.bias},
                        {DNNL_ARG_DST, description_.y},
                        {DNNL_ARG_SCRATCHPAD, hint_.scratchpad_desc()}}),
            make_reorder(description_.weight_oihw, weight, engine_, false)};
  }

  Pass make_backward_data() const {
    const auto desc = describe_backward_data(description_, engine_, hint_);
    const memory::desc weight = desc.weights_desc();
    return {Executable(BackwardData(desc), engine_,
                       {{DNNL_ARG_DIFF_DST, description_.y},
                        {DNNL_ARG_WEIGHTS, weight},
                        {DNNL_ARG_DIFF_SRC, description_.x},
                        {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}),
            make_reorder(description_.weight_oihw, weight, engine_, false)};
  }

  Pass make_backward_weights() const {
    const auto desc = describe_backward_weights(description_, engine_, hint_);
    const memory::desc weight = desc.diff_weights_desc();
    return {Executable(BackwardWeights(desc), engine_,
                       {{DNNL_ARG_SRC, description_.x},
                        {DNNL_ARG_DIFF_DST, description_.y},
                        {DNNL_ARG_DIFF_WEIGHTS, weight},
                        {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}}),
            make_reorder(weight, description_.weight_oihw, engine_, true)};
  }

  const int threads_;
  const Shape input_, output_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  const Description description_;
  const Forward::primitive_desc hint_;
  const std::vector<float> zero_bias_;
  Pass forward_;
  std::unique_ptr<Pass> backward_data_, backward_weights_;
};

}  // namespace

std::unique_ptr<Convolution> make_dnnl_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads) {
  return std::make_unique<DnnlConvolution>(geometry, input, threads);
}

bool dnnl_uses_avx512() {
  // A set of bits, not an order: AVX2 with VNNI has a larger value than AVX-512.
  constexpr auto kAvx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kAvx512) == kAvx512;
}

}  // namespace lockstep
