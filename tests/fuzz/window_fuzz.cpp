// How an image is cut into windows, and what is made of what they say: of any sizes, overlaps and
// blends, the rules in plain loops over the whole image give the same, but for what a compiler
// rounds once where another rounds twice.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "data/window_merge.h"
#include "fuzz/fuzz.h"

using namespace lockstep;

namespace {

void demand(bool holds) {
  if (!holds) std::abort();
}

/// The input's bytes, then zeros.
struct Draw {
  const std::uint8_t* data;
  std::size_t bytes, at = 0;

  int below(int count) {
    const int value = at < bytes ? data[at] : 0;
    ++at;
    return value % count;
  }
};

struct Problem {
  Size image;
  WindowOptions options;
  int classes;
};

Problem problem_of(Draw& draw) {
  Problem problem;
  problem.image = {1 + draw.below(24), 1 + draw.below(24)};
  problem.options.window = {1 + draw.below(32), 1 + draw.below(32)};
  problem.options.overlap = draw.below(110) / 100.0;
  problem.options.divisor = 1 + draw.below(9);
  problem.options.blend = std::array{Blend::kCrop, Blend::kGaussian, Blend::kFlat}[draw.below(3)];
  problem.classes = 1 + draw.below(3);
  return problem;
}

void check_axis(const WindowAxis& axis, int extent, int window, double overlap, int divisor) {
  const std::int64_t units = (std::int64_t{extent} + divisor - 1) / divisor;
  const std::int64_t side = std::min<std::int64_t>(window / divisor, units), rest = units - side;
  const auto step = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(side) * (1 - overlap) + 1e-9));
  const auto count = static_cast<std::int64_t>(axis.starts.size());
  demand(axis.window == side * divisor);
  demand(count == (rest + step - 1) / step + 1 && axis.starts.front() == 0);
  demand(axis.starts.back() + side * divisor == units * divisor);
  for (std::int64_t k = 1; k < count; ++k) {
    const auto begin = axis.starts.begin() + k;
    demand(*begin == (2 * k * rest + count - 1) / (2 * (count - 1)) * divisor);
    demand(begin[0] > begin[-1] && begin[0] - begin[-1] <= step * divisor);
  }
}

void check_owners(const WindowAxis& axis, int extent) {
  const std::vector<int> owners = axis.owners(extent);
  demand(owners.size() == static_cast<std::size_t>(extent));
  for (int i = 0; i < extent; ++i) {
    std::size_t nearest = 0;
    const auto distance = [&](std::size_t k) {
      return std::abs(2 * (i - axis.starts[k]) - (axis.window - 1));
    };
    for (std::size_t k = 1; k < axis.starts.size(); ++k) {
      if (distance(k) < distance(nearest)) nearest = k;
    }
    demand(owners[static_cast<std::size_t>(i)] == static_cast<int>(nearest));
    demand(i >= axis.starts[nearest] && i < axis.starts[nearest] + axis.window);
  }
}

/// What a window says of a pixel of the image: numbers whose sum is 1.
float probability(int window, int y, int x, int c, int classes) {
  const auto hash = static_cast<std::uint32_t>(window * 7 + y * 31 + x * 17) * 2654435761U;
  const float first = static_cast<float>(hash >> 8) / static_cast<float>(1U << 24);
  if (classes == 1) return 1;
  if (c == 0) return first;
  return (1 - first) / static_cast<float>(classes - 1);
}

/// The whole image at once.
struct Expected {
  std::vector<int> row_owners, column_owners;
  std::vector<float> gaussian;
  std::vector<float> map = {};
  std::int64_t compared = 0;
};

float weight_of(Blend blend, const Expected& expected, const WindowGrid& grid, int row, int column,
                int y, int x) {
  const WindowPlace place = grid.at(row, column);
  switch (blend) {
    case Blend::kGaussian:
      return expected
          .gaussian[static_cast<std::size_t>((y - place.y) * grid.window().width + x - place.x)];
    case Blend::kCrop: {
      const bool own = expected.row_owners[static_cast<std::size_t>(y)] == row &&
                       expected.column_owners[static_cast<std::size_t>(x)] == column;
      return own ? 1 : 0;
    }
    case Blend::kFlat:
      break;
  }
  return 1;
}

bool covers(const WindowPlace& place, int y, int x) {
  return y >= place.y && y < place.y + place.size.height && x >= place.x &&
         x < place.x + place.size.width;
}

void expect_pixel(const Problem& problem, const WindowGrid& grid, int y, int x,
                  Expected& expected) {
  std::vector<float> sums(static_cast<std::size_t>(problem.classes));
  float weights = 0;
  for (int row = 0; row < grid.rows(); ++row) {
    for (int column = 0; column < grid.columns(); ++column) {
      if (!covers(grid.at(row, column), y, x)) continue;
      expected.compared += column > 0 && covers(grid.at(row, column - 1), y, x);
      expected.compared += row > 0 && covers(grid.at(row - 1, column), y, x);
      const float weight = weight_of(problem.options.blend, expected, grid, row, column, y, x);
      if (weight == 0) continue;
      const int window = row * grid.columns() + column;
      for (int c = 0; c < problem.classes; ++c)
        sums[static_cast<std::size_t>(c)] += weight * probability(window, y, x, c, problem.classes);
      weights += weight;
    }
  }
  demand(weights > 0);
  for (const float sum : sums) expected.map.push_back(sum / weights);
}

void check_merge(const Problem& problem, const WindowGrid& grid) {
  Expected expected{grid.row_axis().owners(problem.image.height),
                    grid.column_axis().owners(problem.image.width),
                    gaussian_weights(grid.window())};
  for (int y = 0; y < problem.image.height; ++y) {
    for (int x = 0; x < problem.image.width; ++x) expect_pixel(problem, grid, y, x, expected);
  }
  std::vector<float> map;
  int next = 0;
  WindowMerge merge(grid, problem.classes, problem.options.blend, true,
                    [&](int first, int count, std::span<const float> rows) {
                      demand(first == next && count > 0);
                      next += count;
                      map.insert(map.end(), rows.begin(), rows.end());
                    });
  const Size window = grid.window();
  std::vector<float> said;
  for (int number = 0; number < grid.rows() * grid.columns(); ++number) {
    const WindowPlace place = grid.at(number / grid.columns(), number % grid.columns());
    said.clear();
    for (int y = 0; y < window.height; ++y) {
      for (int x = 0; x < window.width; ++x) {
        for (int c = 0; c < problem.classes; ++c)
          said.push_back(probability(number, place.y + y, place.x + x, c, problem.classes));
      }
    }
    merge.add(said, window.width);
  }
  demand(next == problem.image.height && merge.mismatch().pixels == expected.compared);
  demand(map.size() == expected.map.size());
  const float tolerance = problem.options.blend == Blend::kCrop ? 0 : 1e-5F;
  for (std::size_t i = 0; i < map.size(); ++i)
    demand(std::abs(map[i] - expected.map[i]) <= tolerance);
  for (auto pixel = map.begin(); pixel != map.end(); pixel += problem.classes) {
    float total = 0;
    for (int c = 0; c < problem.classes; ++c) total += pixel[c];
    demand(std::abs(total - 1) < 1e-5F);
  }
}

/// A side as long as sides are, in windows as long as they are, and not too many.
void check_long_axis(Draw& draw, double overlap) {
  int extent = 1;
  for (int i = 0; i < 4; ++i) extent = extent % (1 << 20) * 128 + draw.below(128);
  extent = std::max(extent, 1);
  const int divisor = 1 << draw.below(8);
  constexpr int kLongest = 65536;
  const int window = std::min(extent / (1 + draw.below(100)), kLongest);
  test::may_complain([&] {
    const WindowAxis axis = window_axis(extent, window, std::min(overlap, 0.5), divisor);
    check_axis(axis, extent, window, std::min(overlap, 0.5), divisor);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  Draw draw{data, bytes};
  const Problem problem = problem_of(draw);
  const WindowOptions& options = problem.options;
  test::may_complain([&] {
    const WindowGrid grid(problem.image, problem.options);
    check_axis(grid.row_axis(), problem.image.height, options.window.height, options.overlap,
               options.divisor);
    check_axis(grid.column_axis(), problem.image.width, options.window.width, options.overlap,
               options.divisor);
    check_owners(grid.row_axis(), problem.image.height);
    check_owners(grid.column_axis(), problem.image.width);
    check_merge(problem, grid);
  });
  check_long_axis(draw, options.overlap);
  return 0;
}
