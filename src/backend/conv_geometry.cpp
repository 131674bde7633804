#include <array>
#include <limits>

#include "lockstep/backend/convolutions.h"
#include "lockstep/backend/pooling.h"
#include "lockstep/core/check.h"
#include "lockstep/core/options.h"

namespace lockstep {
namespace {

struct Window {
  std::int64_t kernel, stride, padding, dilation;
};

std::int64_t output_extent(const char* axis, std::int64_t input, const Window& window) {
  const std::int64_t reach = window.dilation * (window.kernel - 1) + 1;
  const std::int64_t padded = input + 2 * window.padding;
  LOCKSTEP_CHECK(padded >= reach, "the window does not fit: it spans ", reach, " in ", axis,
                 ", but the padded input has ", padded);
  return (padded - reach) / window.stride + 1;
}

// Beyond these no tensor has so many rows, and sums of them are no numbers.
void check_window(const char* what, std::int64_t vertical, std::int64_t horizontal,
                  std::int64_t least) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  LOCKSTEP_CHECK(
      vertical >= least && horizontal >= least && vertical <= kMost && horizontal <= kMost, what,
      " must be from ", least, " to ", kMost, ", got ", vertical, "x", horizontal);
}

void check_input_rank(const Shape& input) {
  LOCKSTEP_CHECK(input.rank() == 4, "expected an input of shape [N, H, W, C], got ",
                 to_string(input));
}

}  // namespace

void ConvGeometry::check() const {
  LOCKSTEP_CHECK(in_channels > 0 && out_channels > 0, "channels must be positive, got ",
                 in_channels, " in and ", out_channels, " out");
  check_window("the kernel", kernel_h, kernel_w, 1);
  check_window("the stride", stride_h, stride_w, 1);
  check_window("the dilation", dilation_h, dilation_w, 1);
  check_window("padding", padding_h, padding_w, 0);
  LOCKSTEP_CHECK(groups > 0 && in_channels % groups == 0 && out_channels % groups == 0, groups,
                 " groups must divide ", in_channels, " input and ", out_channels,
                 " output channels");
}

Shape ConvGeometry::weight_shape() const {
  check();
  return {out_channels, in_channels / groups, kernel_h, kernel_w};
}

Shape ConvGeometry::output_shape(const Shape& input) const {
  check();
  check_input_rank(input);
  LOCKSTEP_CHECK(input.channels() == in_channels, "expected ", in_channels,
                 " input channels, got an input of shape ", to_string(input));
  const Window vertical{kernel_h, stride_h, padding_h, dilation_h};
  const Window horizontal{kernel_w, stride_w, padding_w, dilation_w};
  return {input.batch(), output_extent("height", input.height(), vertical),
          output_extent("width", input.width(), horizontal), out_channels};
}

std::string to_string(const ConvGeometry& g) {
  return concat(g.kernel_h, "x", g.kernel_w, " convolution of ", g.in_channels, " to ",
                g.out_channels, " channels, stride ", g.stride_h, "x", g.stride_w, ", padding ",
                g.padding_h, "x", g.padding_w, ", dilation ", g.dilation_h, "x", g.dilation_w,
                ", groups ", g.groups);
}

constexpr std::array<Named<ConvPass>, 3> names_of(ConvPass) {
  return {{{"forward", ConvPass::kForward},
           {"backward data", ConvPass::kBackwardData},
           {"backward weights", ConvPass::kBackwardWeights}}};
}

const char* to_string(ConvPass pass) { return to_string<ConvPass>(pass); }

void PoolGeometry::check() const {
  check_window("the kernel", kernel_h, kernel_w, 1);
  check_window("the stride", stride_h, stride_w, 1);
  LOCKSTEP_CHECK(
      padding_h >= 0 && padding_w >= 0 && 2 * padding_h <= kernel_h && 2 * padding_w <= kernel_w,
      "padding must be between 0 and half the window, got ", padding_h, "x", padding_w,
      " for a window of ", kernel_h, "x", kernel_w);
}

Shape PoolGeometry::output_shape(const Shape& input) const {
  check();
  check_input_rank(input);
  return {
      input.batch(), output_extent("height", input.height(), {kernel_h, stride_h, padding_h, 1}),
      output_extent("width", input.width(), {kernel_w, stride_w, padding_w, 1}), input.channels()};
}

}  // namespace lockstep
