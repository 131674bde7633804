#pragma once
// Functions of one and of two elements with their derivatives, written once and used by the CPU and
// the GPU code. They are made of additions, products that are fused by hand, and divisions, so that
// they have the same bits on every device: a library's exp, tanh and erf differ from device to
// device. A function says its derivative; what a gradient is, follows: derivative * grad_y.

#include <bit>
#include <cmath>
#include <cstdint>

#include "backend/formulas.h"

namespace lockstep {

// What is behind a choice is computed before it: compilers do not make vectors of a computation
// that they may only do where it is chosen.

/// c + rest[0] x + rest[1] x^2 + ..., by Horner's rule. Not a loop, which would be one inside the
/// loop over elements.
LOCKSTEP_HOST_DEVICE inline float polynomial(float, float c) { return c; }
template <typename... Rest>
LOCKSTEP_HOST_DEVICE float polynomial(float x, float c, Rest... rest) {
  return std::fma(polynomial(x, rest...), x, c);
}

/// e^x within 2 units in the last place for -87 < x < 88; beyond it stays what it is there. NaN
/// stays NaN. Method: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor series to the seventh
/// degree, 2^n by its bits.
LOCKSTEP_HOST_DEVICE inline float exponential(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float above = x < -87.0F ? -87.0F : x;
  x = above > 88.0F ? 88.0F : above;
  const float shifted = std::fma(x, kLog2E, kRound);
  const float n = shifted - kRound;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound) + 127U;
  const float series =
      polynomial(r, 1.0F, 1.0F, 0.5F, 1.0F / 6, 1.0F / 24, 1.0F / 120, 1.0F / 720, 1.0F / 5040);
  return series * std::bit_cast<float>(exponent << 23U);
}

/// tanh(x) within 2 units in the last place; NaN stays NaN. Below 0.625 by the odd polynomial with
/// the least largest relative error (4e-9), above by e^2x.
LOCKSTEP_HOST_DEVICE inline float hyperbolic_tangent(float x) {
  const float size = std::fabs(x), square = x * x;
  const float series = polynomial(square, -0.333332837F, 0.133314908F, -0.0537434965F,
                                  0.0206505861F, -0.0057170433F);
  const float small = std::fma(x * square, series, x);
  const float large = std::copysign(1.0F - 2.0F / (exponential(2.0F * size) + 1.0F), x);
  return size < 0.625F ? small : large;
}

/// The share of a standard normal distribution that lies below x, 0.5 (1 + erf(x / sqrt 2)): within
/// 1e-7. NaN stays NaN. With t = |x| / sqrt 2: below 1, erf(t) = t + t P(t^2) with the least
/// largest relative error (1e-9); above, ln erfc(t) = -t - t Q(t) with the least absolute one
/// (1e-7); from 4 on, where erfc is below 2e-8, nothing is left.
LOCKSTEP_HOST_DEVICE inline float normal_distribution(float x) {
  constexpr float kSqrtHalf = 0.707106781F;
  const float t = std::fabs(x) * kSqrtHalf, square = t * t;
  const float p = polynomial(square, 0.128379166F, -0.37612626F, 0.112835854F, -0.0268538129F,
                             0.00518832775F, -0.000801019371F, 7.85386146e-05F);
  const float q = polynomial(t, 0.128951132F, 0.633993626F, 0.108058952F, -0.0252825655F,
                             0.00436210074F, -0.000512650644F, 3.61590137e-05F, -1.14080069e-06F);
  const float erf = std::fma(t, p, t);
  const float inner = std::fma(0.5F, std::copysign(erf, x), 0.5F);
  const float near = 0.5F * exponential(-std::fma(t, q, t));
  const float outside = t > 4.0F ? 0.0F : near;
  const float above = 1.0F - outside;
  const float outer = x < 0.0F ? outside : above;
  return t < 1.0F ? inner : outer;
}

// --- functions of one element. kFromOutput: `derivative` takes y, not x

struct Relu6 {
  static constexpr bool kFromOutput = true;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const {
    const float above = x < 0.0F ? 0.0F : x;
    return above > 6.0F ? 6.0F : above;
  }
  LOCKSTEP_HOST_DEVICE float derivative(float y) const {
    const float below = y >= 6.0F ? 0.0F : 1.0F;
    return y <= 0.0F ? 0.0F : below;
  }
};

/// REQUIRES: the slope is not negative, so that y has the sign of x.
struct LeakyRelu {
  static constexpr bool kFromOutput = true;
  float slope = 0.01F;

  LOCKSTEP_HOST_DEVICE float operator()(float x) const {
    const float below = slope * x;
    return x < 0.0F ? below : x;
  }
  LOCKSTEP_HOST_DEVICE float derivative(float y) const { return y <= 0.0F ? slope : 1.0F; }
};

struct Sigmoid {
  static constexpr bool kFromOutput = true;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return 1.0F / (1.0F + exponential(-x)); }
  LOCKSTEP_HOST_DEVICE float derivative(float y) const { return y * (1.0F - y); }
};

/// relu6(x + 3) / 6.
struct Hardsigmoid {
  static constexpr bool kFromOutput = true;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const {
    const float y = std::fma(x, 1.0F / 6, 0.5F);
    const float above = y < 0.0F ? 0.0F : y;
    return above > 1.0F ? 1.0F : above;
  }
  LOCKSTEP_HOST_DEVICE float derivative(float y) const {
    const float below = y >= 1.0F ? 0.0F : 1.0F / 6;
    return y <= 0.0F ? 0.0F : below;
  }
};

struct Tanh {
  static constexpr bool kFromOutput = true;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return hyperbolic_tangent(x); }
  LOCKSTEP_HOST_DEVICE float derivative(float y) const { return std::fma(-y, y, 1.0F); }
};

/// x sigmoid(x) (Elfwing et al. 2017; Ramachandran et al. 2017: Swish).
struct Silu {
  static constexpr bool kFromOutput = false;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x * Sigmoid()(x); }
  LOCKSTEP_HOST_DEVICE float derivative(float x) const {
    const float s = Sigmoid()(x);
    return s * std::fma(x, 1.0F - s, 1.0F);
  }
};

/// x relu6(x + 3) / 6 (Howard et al. 2019).
struct Hardswish {
  static constexpr bool kFromOutput = false;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x * Hardsigmoid()(x); }
  LOCKSTEP_HOST_DEVICE float derivative(float x) const {
    const float between = std::fma(x, 1.0F / 3, 0.5F);
    const float below = x > 3.0F ? 1.0F : between;
    return x < -3.0F ? 0.0F : below;
  }
};

/// x times the normal distribution's share below x (Hendrycks and Gimpel 2016).
struct Gelu {
  static constexpr bool kFromOutput = false;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x * normal_distribution(x); }
  LOCKSTEP_HOST_DEVICE float derivative(float x) const {
    constexpr float kDensityAtZero = 0.398942280F;  // 1 / sqrt(2 pi)
    const float density = kDensityAtZero * exponential(-0.5F * x * x);
    return std::fma(x, density, normal_distribution(x));
  }
};

/// The same paper's approximation, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr bool kFromOutput = false;
  static constexpr float kScale = 0.797884561F, kCubic = 0.044715F;

  LOCKSTEP_HOST_DEVICE static float tangent(float x) {
    return hyperbolic_tangent(kScale * std::fma(kCubic * x * x, x, x));
  }
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return 0.5F * x * (1.0F + tangent(x)); }
  LOCKSTEP_HOST_DEVICE float derivative(float x) const {
    const float t = tangent(x);
    const float inner = kScale * std::fma(3.0F * kCubic * x, x, 1.0F);
    return std::fma(0.5F * x * inner, std::fma(-t, t, 1.0F), std::fma(0.5F, t, 0.5F));
  }
};

/// Relu as one of them.
struct ReluActivation : Relu {
  static constexpr bool kFromOutput = true;
};

/// function(F{...}) with the function that `activation` names.
template <typename Function>
LOCKSTEP_HOST_DEVICE auto with_activation(const Activation& activation, const Function& function) {
  switch (activation.kind) {
    case ActivationKind::kRelu6:
      return function(Relu6{});
    case ActivationKind::kLeakyRelu:
      return function(LeakyRelu{activation.slope});
    case ActivationKind::kSigmoid:
      return function(Sigmoid{});
    case ActivationKind::kHardsigmoid:
      return function(Hardsigmoid{});
    case ActivationKind::kTanh:
      return function(Tanh{});
    case ActivationKind::kSilu:
      return function(Silu{});
    case ActivationKind::kHardswish:
      return function(Hardswish{});
    case ActivationKind::kGelu:
      return function(Gelu{});
    case ActivationKind::kGeluTanh:
      return function(GeluTanh{});
    case ActivationKind::kRelu:
      break;
  }
  return function(ReluActivation{});
}

// --- functions of two elements. left(a, b), right(a): the derivatives by a and by b

struct Sum : Add {
  LOCKSTEP_HOST_DEVICE float left(float, float) const { return 1.0F; }
  LOCKSTEP_HOST_DEVICE float right(float) const { return 1.0F; }
};

struct Difference {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a - b; }
  LOCKSTEP_HOST_DEVICE float left(float, float) const { return 1.0F; }
  LOCKSTEP_HOST_DEVICE float right(float) const { return -1.0F; }
};

struct Product {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a * b; }
  LOCKSTEP_HOST_DEVICE float left(float, float b) const { return b; }
  LOCKSTEP_HOST_DEVICE float right(float a) const { return a; }
};

/// PReLU (He et al. 2015): `slope` times a where a is not positive.
struct PRelu {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float slope) const {
    const float below = slope * a;
    return a > 0.0F ? a : below;
  }
  LOCKSTEP_HOST_DEVICE float left(float a, float slope) const { return a > 0.0F ? 1.0F : slope; }
  LOCKSTEP_HOST_DEVICE float right(float a) const { return a > 0.0F ? 0.0F : a; }
};

/// function(F{}) with the function that `kind` names.
template <typename Function>
LOCKSTEP_HOST_DEVICE auto with_binary(BinaryKind kind, const Function& function) {
  switch (kind) {
    case BinaryKind::kSubtract:
      return function(Difference{});
    case BinaryKind::kMultiply:
      return function(Product{});
    case BinaryKind::kPRelu:
      return function(PRelu{});
    case BinaryKind::kAdd:
      break;
  }
  return function(Sum{});
}

// --- how a result is added to what is there

/// Functions that say in `added` how they are added to something. (In a requires expression with a
/// pack nvcc finds no member.)
template <typename F>
concept Fused = requires {
  requires F::kFused;
};

/// before + f(x...): fused where f says how.
template <typename F, typename... X>
LOCKSTEP_HOST_DEVICE float added(const F& f, float before, X... x) {
  if constexpr (Fused<F>) {
    return f.added(before, x...);
  } else {
    return before + f(x...);
  }
}

/// f of two elements where the second is always the same, and of a third.
template <typename F>
struct WithSecond {
  static constexpr bool kFused = Fused<F>;
  F f;
  float second;
  template <typename... More>
  LOCKSTEP_HOST_DEVICE float operator()(float first, More... more) const {
    return f(first, second, more...);
  }
  template <typename... More>
  LOCKSTEP_HOST_DEVICE float added(float before, float first, More... more) const {
    return f.added(before, first, second, more...);
  }
};

// --- softmax

/// e^(x - largest), of which softmax is a share.
struct ExponentialFrom {
  float largest;
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return exponential(x - largest); }
};

/// The gradient of softmax. `mean`: of the gradients, weighted by y.
struct SoftmaxGradient {
  static constexpr bool kFused = true;
  float mean;
  LOCKSTEP_HOST_DEVICE float operator()(float y, float grad_y) const { return y * (grad_y - mean); }
  LOCKSTEP_HOST_DEVICE float added(float before, float y, float grad_y) const {
    return std::fma(y, grad_y - mean, before);
  }
};

// --- gradients

/// From x or y, whichever `derivative` takes, and the gradient of y.
template <typename F>
struct ActivationGradient {
  static constexpr bool kFused = true;
  F f;
  LOCKSTEP_HOST_DEVICE float operator()(float saved, float grad_y) const {
    return f.derivative(saved) * grad_y;
  }
  LOCKSTEP_HOST_DEVICE float added(float before, float saved, float grad_y) const {
    return std::fma(f.derivative(saved), grad_y, before);
  }
};
/// Chosen, not multiplied: where nothing passes, an infinite gradient does not either.
template <>
struct ActivationGradient<ReluActivation> {
  ReluActivation f;
  LOCKSTEP_HOST_DEVICE float operator()(float y, float grad_y) const {
    return ReluGradient()(y, grad_y);
  }
};

template <typename F>
struct LeftGradient {
  static constexpr bool kFused = true;
  F f;
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b, float grad_y) const {
    return f.left(a, b) * grad_y;
  }
  LOCKSTEP_HOST_DEVICE float added(float before, float a, float b, float grad_y) const {
    return std::fma(f.left(a, b), grad_y, before);
  }
};

template <typename F>
struct RightGradient {
  static constexpr bool kFused = true;
  F f;
  LOCKSTEP_HOST_DEVICE float operator()(float a, float grad_y) const { return f.right(a) * grad_y; }
  LOCKSTEP_HOST_DEVICE float added(float before, float a, float grad_y) const {
    return std::fma(f.right(a), grad_y, before);
  }
  /// Exact.
  LOCKSTEP_HOST_DEVICE double wide(float a, float grad_y) const {
    return static_cast<double>(f.right(a)) * static_cast<double>(grad_y);
  }
};

// --- functions that are told which they are: one kernel instead of many, where memory is the bound

struct AnyActivation {
  Activation activation;

  LOCKSTEP_HOST_DEVICE float operator()(float x) const {
    return with_activation(activation, [x](const auto& f) { return f(x); });
  }
};

struct AnyActivationGradient {
  static constexpr bool kFused = true;
  Activation activation;

  LOCKSTEP_HOST_DEVICE float operator()(float saved, float grad_y) const {
    return with_activation(activation,
                           [=](const auto& f) { return ActivationGradient{f}(saved, grad_y); });
  }
  LOCKSTEP_HOST_DEVICE float added(float before, float saved, float grad_y) const {
    return with_activation(activation, [=](const auto& f) {
      return lockstep::added(ActivationGradient{f}, before, saved, grad_y);
    });
  }
};

struct AnyRightGradient {
  static constexpr bool kFused = true;
  BinaryKind kind;

  LOCKSTEP_HOST_DEVICE float operator()(float a, float grad_y) const {
    return with_binary(kind, [=](const auto& f) { return RightGradient{f}(a, grad_y); });
  }
  LOCKSTEP_HOST_DEVICE float added(float before, float a, float grad_y) const {
    return with_binary(kind,
                       [=](const auto& f) { return RightGradient{f}.added(before, a, grad_y); });
  }
};

}  // namespace lockstep
