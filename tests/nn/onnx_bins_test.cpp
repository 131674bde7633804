// The bins of adaptive pooling that an ONNX file computes of an image's size: the nodes that lead
// to them, evaluated.

#include <doctest/doctest.h>

#include "nn/onnx_reader.h"

namespace lockstep::test {
namespace {

/// Of at most two extents; one has them as its columns.
struct Matrix {
  std::int64_t rows = 1, columns = 1;
  std::vector<double> values;
  bool integer = true;

  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row % rows * columns + column % columns)];
  }
};

Matrix of_both(const std::string& op_type, const Matrix& a, const Matrix& b) {
  const std::map<std::string, std::function<double(double, double)>> operations{
      {"Mul", std::multiplies<>()},
      {"Add", std::plus<>()},
      {"Sub", std::minus<>()},
      {"And", std::logical_and<>()},
      {"Less", std::less<>()},
      {"GreaterOrEqual", std::greater_equal<>()},
      {"Div", [&](double x, double y) { return a.integer ? std::floor(x / y) : x / y; }}};
  REQUIRE(operations.contains(op_type));
  CHECK(a.integer == b.integer);
  Matrix result{std::max(a.rows, b.rows), std::max(a.columns, b.columns), {}, a.integer};
  for (std::int64_t row = 0; row < result.rows; ++row) {
    for (std::int64_t column = 0; column < result.columns; ++column) {
      result.values.push_back(operations.at(op_type)(a.at(row, column), b.at(row, column)));
    }
  }
  return result;
}

/// The tensor of that name for images of height x width.
Matrix computed(const File& file, const std::string& name, std::int64_t height,
                std::int64_t width) {
  if (file.constants.contains(name)) {
    const Constant& constant = file.constants.at(name);
    const OnnxInts& extents = constant.extents;
    return {extents.size() == 2 ? extents[0] : 1, extents.empty() ? 1 : extents.back(),
            std::vector<double>(constant.ints.begin(), constant.ints.end())};
  }
  const auto node = std::find_if(file.nodes.begin(), file.nodes.end(),
                                 [&](const Node& candidate) { return candidate.output == name; });
  REQUIRE(node != file.nodes.end());
  const auto input = [&](std::size_t k) {
    return computed(file, node->inputs.at(k), height, width);
  };
  if (node->op_type == "Shape") {
    CHECK(node->inputs == Strings{"image"});
    CHECK(node->integer("end") == node->integer("start") + 1);
    return {1, 1, {static_cast<double>(node->integer("start") == 2 ? height : width)}};
  }
  if (node->op_type == "Squeeze") return input(0);
  if (node->op_type == "Cast") {
    CHECK(node->integer("to") == 1);
    Matrix result = input(0);
    result.integer = false;
    return result;
  }
  if (node->op_type == "Range") {
    CHECK(input(0).values.at(0) == 0);
    CHECK(input(2).values.at(0) == 1);
    Matrix result{1, static_cast<std::int64_t>(input(1).values.at(0)), {}};
    for (std::int64_t i = 0; i < result.columns; ++i) {
      result.values.push_back(static_cast<double>(i));
    }
    return result;
  }
  return of_both(node->op_type, input(0), input(1));
}

/// Checks the shares of an adaptive pooling of `size` positions.
void check_bins(const Matrix& shares, std::int64_t bins, std::int64_t size) {
  CAPTURE(bins);
  CAPTURE(size);
  CHECK_FALSE(shares.integer);
  REQUIRE(shares.rows == bins);
  REQUIRE(shares.columns == size);
  for (std::int64_t bin = 0; bin < bins; ++bin) {
    const std::int64_t begin = bin * size / bins, end = ((bin + 1) * size + bins - 1) / bins;
    for (std::int64_t i = 0; i < size; ++i) {
      const double share = i >= begin && i < end ? 1.0 / static_cast<double>(end - begin) : 0.0;
      CHECK(shares.at(bin, i) == share);
    }
  }
}

}  // namespace

TEST_CASE("onnx: the bins that a file computes are those of adaptive pooling") {
  const ExportedModel model =
      exported([](NetworkBuilder& net, Value* x) { return net.adaptive_avg_pool2d(x, 6, 4); });
  const File file = model.file();
  REQUIRE(file.nodes.back().op_type == "MatMul");
  const Node& by_columns = file.nodes.back();
  const Node& by_rows = file.node("MatMul");
  CHECK(by_rows.inputs[1] == "image");
  CHECK(by_columns.inputs[0] == by_rows.output);
  const Node& transpose = file.node("Transpose");
  CHECK(transpose.ints("perm") == OnnxInts{1, 0});
  CHECK(by_columns.inputs[1] == transpose.output);
  for (const std::int64_t height : {1, 5, 6, 11, 24}) {
    for (const std::int64_t width : {1, 3, 7, 8}) {
      check_bins(computed(file, by_rows.inputs[0], height, width), 6, height);
      check_bins(computed(file, transpose.inputs[0], height, width), 4, width);
    }
  }
}

}  // namespace lockstep::test
