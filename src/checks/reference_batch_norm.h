#pragma once
// BatchNorm (+ add, + ReLU) in double by naive two-pass loops, written from the formulas of the
// paper and apart from the production code. The self-test and the tests compare with it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lockstep {

using Doubles = std::vector<double>;

/// All rows are one batch: what synchronized devices must add up to.
struct ReferenceBatchNorm {
  std::size_t channels = 1;
  Doubles x;         // [rows, C]
  Doubles residual;  // [rows, C] or empty
  Doubles weight;    // [C] or empty (1)
  Doubles bias;      // [C] or empty (0)
  double eps = 1e-5;
  bool clamp = false;
  bool relu = false;

  struct Moments {
    double count = 0;   // rows
    Doubles mean, var;  // [C], biased variance

    /// What running_var takes.
    Doubles unbiased_var() const {
      Doubles all = var;
      for (double& value : all) value *= count / (count - 1);
      return all;
    }
  };
  struct Output {
    Doubles mean, var, invstd;  // [C], biased variance
    Doubles linear;             // [rows, C] before the ReLU
    Doubles y;                  // [rows, C]
  };
  struct Gradients {
    Doubles x, residual;         // [rows, C]
    Doubles weight, bias;        // [C]
    Doubles sum_dy, sum_dy_xmu;  // [C]
  };

  std::size_t rows() const { return x.size() / channels; }
  double gamma(std::size_t c) const { return weight.empty() ? 1.0 : weight[c]; }
  double beta(std::size_t c) const { return bias.empty() ? 0.0 : bias[c]; }

  Moments moments() const {
    Moments all{static_cast<double>(rows()), Doubles(channels), Doubles(channels)};
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = c; i < x.size(); i += channels) all.mean[c] += x[i] / all.count;
      for (std::size_t i = c; i < x.size(); i += channels) {
        all.var[c] += (x[i] - all.mean[c]) * (x[i] - all.mean[c]) / all.count;
      }
    }
    return all;
  }

  Output forward() const { return forward(moments()); }

  /// By given moments.
  Output forward(const Moments& by) const {
    Output out{by.mean, by.var, Doubles(channels), x, x};
    for (std::size_t c = 0; c < channels; ++c) {
      const double guarded = clamp ? std::max(by.var[c], eps) : by.var[c] + eps;
      out.invstd[c] = 1.0 / std::sqrt(guarded);
      for (std::size_t i = c; i < x.size(); i += channels) {
        const double normalized = (x[i] - by.mean[c]) * out.invstd[c];
        out.linear[i] = gamma(c) * normalized + beta(c) + (residual.empty() ? 0.0 : residual[i]);
        out.y[i] = relu && out.linear[i] < 0 ? 0.0 : out.linear[i];
      }
    }
    return out;
  }

  /// By the chain rule through the mean and the variance, step by step (Ioffe and Szegedy 2015,
  /// section 3).
  Gradients backward(const Output& out, const Doubles& grad_y) const {
    Gradients grads{Doubles(x.size()), grad_y,           Doubles(channels), Doubles(channels),
                    Doubles(channels), Doubles(channels)};
    const auto n = static_cast<double>(rows());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (relu && out.linear[i] <= 0) grads.residual[i] = 0;
    }
    for (std::size_t c = 0; c < channels; ++c) {
      double grad_var = 0, grad_mean = 0;
      for (std::size_t i = c; i < x.size(); i += channels) {
        const double centred = x[i] - out.mean[c];
        grads.sum_dy[c] += grads.residual[i];
        grads.sum_dy_xmu[c] += grads.residual[i] * centred;
        grads.weight[c] += grads.residual[i] * centred * out.invstd[c];
        grads.bias[c] += grads.residual[i];
        const double grad_normalized = grads.residual[i] * gamma(c);
        grad_var += grad_normalized * centred * -0.5 * std::pow(out.invstd[c], 3);
        grad_mean -= grad_normalized * out.invstd[c];
      }
      if (clamp && out.var[c] <= eps) grad_var = 0;
      for (std::size_t i = c; i < x.size(); i += channels) {
        const double centred = x[i] - out.mean[c];
        grads.x[i] = grads.residual[i] * gamma(c) * out.invstd[c] + grad_var * 2 * centred / n +
                     grad_mean / n;
      }
    }
    return grads;
  }
};

}  // namespace lockstep
