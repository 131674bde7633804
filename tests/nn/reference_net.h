#pragma once
// A second implementation of the layers: eager, naive, in double (BatchNorm: the self-test's). It
// has NetworkBuilder's methods, so that one template describes a network for both; parameters come
// by name.

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "checks/reference_batch_norm.h"
#include "lockstep/nn/network.h"

namespace lockstep::test {

struct ReferenceTensor {
  Shape shape;
  Doubles values;

  double& at(std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) {
    return values[static_cast<std::size_t>(
        ((n * shape.height() + y) * shape.width() + x) * shape.channels() + c)];
  }
  double at(std::int64_t n, std::int64_t y, std::int64_t x, std::int64_t c) const {
    return const_cast<ReferenceTensor*>(this)->at(n, y, x, c);
  }
};

inline ReferenceTensor zeros(const Shape& shape) {
  return {shape, Doubles(static_cast<std::size_t>(shape.elements()), 0.0)};
}

class ReferenceNet {
 public:
  using V = ReferenceTensor;

  /// How BatchNorm forms its statistics: rows of these numbers of samples together. Empty: running
  /// statistics.
  std::vector<std::int64_t> slices;
  std::map<std::string, Doubles> parameters;  // also running_mean and running_var
  double eps = 1e-5F;
  bool clamp = false;
  std::map<std::string, std::vector<Doubles>> means,
      variances;  // [layer][slice] of the last run, biased

  V conv2d(const V& x, const std::string& name, const Conv2dOptions& o) {
    const std::int64_t reach = o.dilation * (o.kernel - 1) + 1;
    const std::int64_t inputs = x.shape.channels() / o.groups;
    const std::int64_t outputs = o.out_channels / o.groups;
    const Doubles& weight = parameters.at(name + ".weight");
    V y = zeros({x.shape.batch(), (x.shape.height() + 2 * o.padding - reach) / o.stride + 1,
                 (x.shape.width() + 2 * o.padding - reach) / o.stride + 1, o.out_channels});
    each(y, [&](double& value, const At& at) {
      if (o.bias) value = parameters.at(name + ".bias")[static_cast<std::size_t>(at[3])];
      for (std::int64_t ky = 0; ky < o.kernel; ++ky) {
        for (std::int64_t kx = 0; kx < o.kernel; ++kx) {
          const std::int64_t iy = at[1] * o.stride - o.padding + ky * o.dilation;
          const std::int64_t ix = at[2] * o.stride - o.padding + kx * o.dilation;
          if (iy < 0 || ix < 0 || iy >= x.shape.height() || ix >= x.shape.width()) continue;
          for (std::int64_t c = 0; c < inputs; ++c) {
            const std::int64_t w = ((at[3] * inputs + c) * o.kernel + ky) * o.kernel + kx;
            value += x.at(at[0], iy, ix, at[3] / outputs * inputs + c) *
                     weight[static_cast<std::size_t>(w)];
          }
        }
      }
    });
    return y;
  }

  struct BatchNormCall {
    bool relu = false;
    const V* residual = nullptr;
    bool frozen = false;
  };
  V batch_norm(const V& x, const std::string& name) { return batch_norm(x, name, {}); }
  V batch_norm_relu(const V& x, const std::string& name) {
    return batch_norm(x, name, BatchNormCall{true, nullptr, false});
  }
  V batch_norm_add_relu(const V& x, const V& residual, const std::string& name) {
    return batch_norm(x, name, BatchNormCall{true, &residual, false});
  }
  V batch_norm(const V& x, const std::string& name, const BatchNormCall& call) {
    V y = zeros(x.shape);
    means[name].clear();
    variances[name].clear();
    std::int64_t begin = 0;
    const bool constant = call.frozen || slices.empty();
    for (const std::int64_t count : constant ? std::vector{x.shape.batch()} : slices) {
      normalize(x, y, name, begin, begin + count, constant);
      begin += count;
    }
    each(y, [&](double& value, const At& at) {
      if (call.residual != nullptr) value += call.residual->at(at[0], at[1], at[2], at[3]);
      if (call.relu) value = std::max(value, 0.0);
    });
    return y;
  }

  V activation(V x, const Activation& activation) {
    for (double& value : x.values) value = activated(activation, value);
    return x;
  }
  V relu(const V& x) { return activation(x, ActivationKind::kRelu); }
  V prelu(V x, const std::string& name, bool per_channel) {
    const Doubles& slope = parameters.at(name + ".weight");
    const auto channels = static_cast<std::size_t>(x.shape.channels());
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      if (x.values[i] < 0) x.values[i] *= slope[per_channel ? i % channels : 0];
    }
    return x;
  }
  V softmax(V x) {
    const auto channels = static_cast<std::size_t>(x.shape.channels());
    for (std::size_t row = 0; row < x.values.size(); row += channels) {
      double sum = 0;
      for (std::size_t c = 0; c < channels; ++c) sum += std::exp(x.values[row + c]);
      for (std::size_t c = 0; c < channels; ++c) {
        x.values[row + c] = std::exp(x.values[row + c]) / sum;
      }
    }
    return x;
  }
  V slice_channels(const V& x, std::int64_t begin, std::int64_t count) {
    V y = zeros(x.shape.with_channels(count));
    each(y, [&](double& value, const At& at) { value = x.at(at[0], at[1], at[2], begin + at[3]); });
    return y;
  }
  V add(const V& a, const V& b) {
    return combined(a, b, [](double x, double y) { return x + y; });
  }
  V sub(const V& a, const V& b) {
    return combined(a, b, [](double x, double y) { return x - y; });
  }
  V mul(const V& a, const V& b) {
    return combined(a, b, [](double x, double y) { return x * y; });
  }
  V conv_transpose2d(const V& x, const std::string& name, const ConvTranspose2dOptions& o) {
    const auto extent = [&](std::int64_t size) {
      return (size - 1) * o.stride - 2 * o.padding + o.dilation * (o.kernel - 1) +
             o.output_padding + 1;
    };
    const std::int64_t inputs = x.shape.channels() / o.groups;
    const std::int64_t outputs = o.out_channels / o.groups;
    const Doubles& weight = parameters.at(name + ".weight");
    V y =
        zeros({x.shape.batch(), extent(x.shape.height()), extent(x.shape.width()), o.out_channels});
    each(y, [&](double& value, const At& at) {
      if (o.bias) value = parameters.at(name + ".bias")[static_cast<std::size_t>(at[3])];
    });
    V from = x;
    each(from, [&](double& value, const At& at) {  // every element goes to a window of y
      for (std::int64_t ky = 0; ky < o.kernel; ++ky) {
        for (std::int64_t kx = 0; kx < o.kernel; ++kx) {
          const std::int64_t oy = at[1] * o.stride - o.padding + ky * o.dilation;
          const std::int64_t ox = at[2] * o.stride - o.padding + kx * o.dilation;
          if (oy < 0 || ox < 0 || oy >= y.shape.height() || ox >= y.shape.width()) continue;
          for (std::int64_t c = 0; c < outputs; ++c) {
            const std::int64_t w = ((at[3] * outputs + c) * o.kernel + ky) * o.kernel + kx;
            y.at(at[0], oy, ox, at[3] / inputs * outputs + c) +=
                value * weight[static_cast<std::size_t>(w)];
          }
        }
      }
    });
    return y;
  }
  V max_pool2d(const V& x, const PoolGeometry& g) {
    return pool(x, g, -std::numeric_limits<double>::infinity(),
                [](double a, double b) { return std::max(a, b); });
  }
  V avg_pool2d(const V& x, const PoolGeometry& g) {
    V y = pool(x, g, 0, [](double a, double b) { return a + b; });
    for (double& value : y.values) value /= static_cast<double>(g.kernel_h * g.kernel_w);
    return y;
  }
  V adaptive_avg_pool2d(const V& x, std::int64_t height, std::int64_t width) {
    V y = zeros({x.shape.batch(), height, width, x.shape.channels()});
    const auto bin = [](std::int64_t o, std::int64_t input, std::int64_t output) {
      std::int64_t begin = 0, end = 0;
      while ((begin + 1) * output <= o * input) ++begin;
      while (end * output < (o + 1) * input) ++end;
      return std::pair{begin, end};
    };
    each(y, [&](double& value, const At& at) {
      const auto [top, bottom] = bin(at[1], x.shape.height(), height);
      const auto [left, right] = bin(at[2], x.shape.width(), width);
      for (std::int64_t iy = top; iy < bottom; ++iy) {
        for (std::int64_t ix = left; ix < right; ++ix) value += x.at(at[0], iy, ix, at[3]);
      }
      value /= static_cast<double>((bottom - top) * (right - left));
    });
    return y;
  }
  V all_reduce(const V& x) {
    const auto each_sample = static_cast<std::size_t>(x.shape.elements() / x.shape.batch());
    Doubles sums(each_sample);
    for (std::size_t i = 0; i < x.values.size(); ++i) sums[i % each_sample] += x.values[i];
    V y = x;
    for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] = sums[i % each_sample];
    return y;
  }
  V upsample_bilinear(const V& x, std::int64_t height, std::int64_t width, bool align_corners) {
    V y = zeros({x.shape.batch(), height, width, x.shape.channels()});
    each(y, [&](double& value, const At& at) {
      const Source v = source(at[1], x.shape.height(), height, align_corners);
      const Source h = source(at[2], x.shape.width(), width, align_corners);
      const auto row = [&](std::int64_t iy) {
        return (1 - h.share) * x.at(at[0], iy, h.low, at[3]) +
               h.share * x.at(at[0], iy, h.high, at[3]);
      };
      value = (1 - v.share) * row(v.low) + v.share * row(v.high);
    });
    return y;
  }
  V concat(const std::vector<V>& parts) {
    std::int64_t channels = 0;
    for (const V& part : parts) channels += part.shape.channels();
    V y = zeros(parts[0].shape.with_channels(channels));
    each(y, [&](double& value, const At& at) {
      std::int64_t c = at[3];
      std::size_t k = 0;
      while (c >= parts[k].shape.channels()) c -= parts[k++].shape.channels();
      value = parts[k].at(at[0], at[1], at[2], c);
    });
    return y;
  }

 private:
  using At = std::array<std::int64_t, 4>;
  struct Source {
    std::int64_t low, high;
    double share;
  };

  static double activated(const Activation& activation, double x) {
    const double cubic = x + 0.044715 * x * x * x;
    switch (activation.kind) {
      case ActivationKind::kRelu:
        return std::max(x, 0.0);
      case ActivationKind::kRelu6:
        return std::clamp(x, 0.0, 6.0);
      case ActivationKind::kLeakyRelu:
        return x < 0 ? static_cast<double>(activation.slope) * x : x;
      case ActivationKind::kSigmoid:
        return 1 / (1 + std::exp(-x));
      case ActivationKind::kHardsigmoid:
        return std::clamp(x / 6 + 0.5, 0.0, 1.0);
      case ActivationKind::kTanh:
        return std::tanh(x);
      case ActivationKind::kSilu:
        return x / (1 + std::exp(-x));
      case ActivationKind::kHardswish:
        return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);
      case ActivationKind::kGelu:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case ActivationKind::kGeluTanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * cubic));
    }
    return 0;
  }

  /// b may have one channel, or one position.
  template <typename Function>
  static V combined(const V& a, const V& b, const Function& f) {
    V y = zeros(a.shape);
    each(y, [&](double& value, const At& at) {
      const bool one_row = b.shape.rows_per_sample() == 1;
      value =
          f(a.at(at[0], at[1], at[2], at[3]), b.at(at[0], one_row ? 0 : at[1], one_row ? 0 : at[2],
                                                   b.shape.channels() == 1 ? 0 : at[3]));
    });
    return y;
  }

  static void each(V& y, const std::function<void(double&, const At&)>& visit) {
    for (std::int64_t n = 0; n < y.shape.batch(); ++n) {
      for (std::int64_t h = 0; h < y.shape.height(); ++h) {
        for (std::int64_t w = 0; w < y.shape.width(); ++w) {
          for (std::int64_t c = 0; c < y.shape.channels(); ++c) {
            visit(y.at(n, h, w, c), {n, h, w, c});
          }
        }
      }
    }
  }

  static Source source(std::int64_t o, std::int64_t input, std::int64_t output, bool corners) {
    const double ratio = static_cast<double>(input) / static_cast<double>(output);
    double position = (static_cast<double>(o) + 0.5) * ratio - 0.5;
    if (corners) {
      position = output == 1 ? 0.0
                             : static_cast<double>(o) * static_cast<double>(input - 1) /
                                   static_cast<double>(output - 1);
    }
    position = std::max(position, 0.0);
    const auto low = std::min(static_cast<std::int64_t>(position), input - 1);
    return {low, std::min(low + 1, input - 1), position - static_cast<double>(low)};
  }

  template <typename Function>
  static V pool(const V& x, const PoolGeometry& g, double start, const Function& f) {
    V y = zeros(
        {x.shape.batch(), (x.shape.height() + 2 * g.padding_h - g.kernel_h) / g.stride_h + 1,
         (x.shape.width() + 2 * g.padding_w - g.kernel_w) / g.stride_w + 1, x.shape.channels()});
    each(y, [&](double& value, const At& at) {
      value = start;
      for (std::int64_t ky = 0; ky < g.kernel_h; ++ky) {
        for (std::int64_t kx = 0; kx < g.kernel_w; ++kx) {
          const std::int64_t iy = at[1] * g.stride_h - g.padding_h + ky;
          const std::int64_t ix = at[2] * g.stride_w - g.padding_w + kx;
          if (iy < 0 || ix < 0 || iy >= x.shape.height() || ix >= x.shape.width()) continue;
          value = f(value, x.at(at[0], iy, ix, at[3]));
        }
      }
    });
    return y;
  }

  void normalize(const V& x, V& y, const std::string& name, std::int64_t first, std::int64_t last,
                 bool constant) {
    const std::int64_t sample = x.shape.rows_per_sample() * x.shape.channels();
    ReferenceBatchNorm layer;
    layer.channels = static_cast<std::size_t>(x.shape.channels());
    layer.x.assign(x.values.begin() + first * sample, x.values.begin() + last * sample);
    layer.eps = eps;
    layer.clamp = clamp;
    if (parameters.contains(name + ".weight")) {
      layer.weight = parameters.at(name + ".weight");
      layer.bias = parameters.at(name + ".bias");
    }
    ReferenceBatchNorm::Moments by;
    if (constant) {
      by.mean = parameters.at(name + ".running_mean");
      by.var = parameters.at(name + ".running_var");
    } else {
      by = layer.moments();
    }
    std::ranges::copy(layer.forward(by).y, y.values.begin() + first * sample);
    means[name].push_back(by.mean);
    variances[name].push_back(by.var);
  }
};

}  // namespace lockstep::test
