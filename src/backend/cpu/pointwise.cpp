// Operations that look at one element at a time: activations, dropout.

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "core/rng.h"

namespace lockstep {
namespace {

struct Dropout {
  DropoutElement element;
  std::uint64_t seed;
  bool accumulate;
};

// Element e of a sample takes the e-th number of the sample's own stream.
template <typename T>
void drop_sample(const Tensor& x, const Tensor& y, const Dropout& dropout, std::uint64_t sample) {
  Rng rng(dropout.seed, RngPurpose::kDropout, sample);
  for (std::int64_t row = 0; row < x.shape.rows(); ++row) {
    const T* from = row_of<const T>(x, row);
    T* to = row_of<T>(y, row);
    for (std::int64_t c = 0; c < x.shape.channels(); ++c) {
      const float value = dropout.element(from[c], rng.uniform());
      to[c] = dropout.accumulate ? to[c] + value : value;
    }
  }
}

}  // namespace

void CpuActivations::activation_forward(const Activation& activation, const Tensor& x,
                                        const Tensor& y) {
  check_activation_forward(x, y);
  with_activation(activation, [&](const auto& f) { map(f, y, false, cpu_.threads(), x); });
}

void CpuActivations::activation_backward(const Activation& activation, const Tensor& saved,
                                         const Tensor& grad_y, const Tensor& grad_x,
                                         bool accumulate) {
  check_activation_backward(saved, grad_y, grad_x);
  with_activation(activation, [&](const auto& f) {
    map(ActivationGradient{f}, grad_x, accumulate, cpu_.threads(), saved, grad_y);
  });
}

void CpuActivations::dropout(const Tensor& x, const Tensor& y, float p,
                             DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset,
                             bool accumulate) {
  check_dropout(x, y, p);
  const Dropout dropout{DropoutElement(p), seed.get(), accumulate};
  const auto drop = with_element_type(x.dtype, []<typename T>(T) { return drop_sample<T>; });
  const std::int64_t sample_elements = x.shape.rows_per_sample() * x.shape.channels();
  parallel_for(x.shape.batch(), sample_elements, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = begin; n < end; ++n) {
                   drop(x.sample_range(n, 1), y.sample_range(n, 1), dropout,
                        static_cast<std::uint64_t>(sample_offset + n));
                 }
               });
}

}  // namespace lockstep
