// The transforms of tiles.

#include "backend/cpu/conv/winograd/transforms.h"

#include <algorithm>

#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/simd.h"

namespace lockstep::winograd {

using namespace matmul;
using namespace simd;

namespace {

/// Four values down a column of a tile, or a transformed column.
template <std::int64_t kLanes>
struct Column {
  Vec<kLanes> v0, v1, v2, v3;
};

/// A^T m of four values.
template <std::int64_t kLanes>
struct Pair {
  Vec<kLanes> v0, v1;
};
template <std::int64_t kLanes>
Pair<kLanes> output_pair(Vec<kLanes> m0, Vec<kLanes> m1, Vec<kLanes> m2, Vec<kLanes> m3) {
  return {m0 + m1 + m2, m1 - m2 - m3};
}

/// A y.
template <std::int64_t kLanes>
Column<kLanes> gradient_column(Vec<kLanes> y0, Vec<kLanes> y1) {
  return {y0, y0 + y1, y0 - y1, -y1};
}

/// Loads and stores of whole vectors, and of those that end beyond the channels of a pixel.
template <std::int64_t kLanes>
struct WholeVec {
  Vec<kLanes> load(const float* from) const { return winograd::load<kLanes>(from); }
  void store(float* to, Vec<kLanes> v) const { winograd::store<kLanes>(to, v); }
};
template <std::int64_t kLanes>
struct PartialVec {
  std::int64_t count;
  Vec<kLanes> load(const float* from) const { return load_partial<kLanes>(from, count); }
  void store(float* to, Vec<kLanes> v) const { store_partial<kLanes>(to, v, count); }
};

/// body(c, io) for each kLanes-th channel c below `padded`; io accesses the channels that exist.
template <std::int64_t kLanes, class Body>
void for_each_vec(std::int64_t channels, std::int64_t padded, Body&& body) {
  std::int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) body(c, WholeVec<kLanes>{});
  for (; c < padded; c += kLanes) {
    body(c, PartialVec<kLanes>{std::max<std::int64_t>(channels - c, 0)});
  }
}

/// Consecutive tiles of one row of tiles.
struct Run {
  std::int64_t sample, sub_grid, row, column;
  std::int64_t count;
  std::int64_t offset;  // of the first one within the range
};

template <class Body>
void for_each_run(const TileGrid& grid, TileRange range, Body&& body) {
  for (std::int64_t done = 0; done < range.count;) {
    const std::int64_t tile = range.first + done;
    const std::int64_t row = tile / grid.columns;
    const std::int64_t column = tile % grid.columns;
    const std::int64_t count = std::min(grid.columns - column, range.count - done);
    const std::int64_t sub_grid = row / grid.rows;
    body(Run{sub_grid / grid.dilation.sub_grids(), sub_grid % grid.dilation.sub_grids(),
             row % grid.rows, column, count, done});
    done += count;
  }
}

/// B^T d B of value(row, column).
template <std::int64_t kLanes, class Value>
void store_input_points(Value&& value, float* to, std::int64_t stride) {
  Vec<kLanes> rows[4][4];
  unrolled<4>([&](int i) __attribute__((always_inline)) {
    const Vec<kLanes> d0 = value(i, 0), d1 = value(i, 1), d2 = value(i, 2), d3 = value(i, 3);
    rows[i][0] = d0 - d2;
    rows[i][1] = d1 + d2;
    rows[i][2] = d2 - d1;
    rows[i][3] = d1 - d3;
  });
  unrolled<4>([&](int j) __attribute__((always_inline)) {
    float* column = to + j * stride;
    store<kLanes>(column, rows[0][j] - rows[2][j]);
    store<kLanes>(column + 4 * stride, rows[1][j] + rows[2][j]);
    store<kLanes>(column + 8 * stride, rows[2][j] - rows[1][j]);
    store<kLanes>(column + 12 * stride, rows[1][j] - rows[3][j]);
  });
}

/// The sub-grid of one sample that a run of tiles lies in; strides and offset in elements.
struct SubGrid {
  std::int64_t top, left;  // its first pixel
  std::int64_t height, width;
  std::int64_t pixel_stride, row_stride, offset;

  SubGrid(const Shape& shape, std::int64_t stride, const Dilation& dilation, const Run& run)
      : top(run.sub_grid / dilation.columns),
        left(run.sub_grid % dilation.columns),
        height(pixels(shape.height() - top, dilation.rows)),
        width(pixels(shape.width() - left, dilation.columns)),
        pixel_stride(dilation.columns * stride),
        row_stride(dilation.rows * shape.width() * stride),
        offset((run.sample * shape.rows_per_sample() + top * shape.width() + left) * stride) {}

  bool contains(std::int64_t y, std::int64_t x) const {
    return y >= 0 && y < height && x >= 0 && x < width;
  }

 private:
  static std::int64_t pixels(std::int64_t extent, std::int64_t dilation) {
    return std::max<std::int64_t>((extent + dilation - 1) / dilation, 0);
  }
};

/// And its values.
struct Image : SubGrid {
  std::int64_t channels;
  float* data;

  Image(const Tensor& tensor, const Dilation& dilation, const Run& run)
      : SubGrid(tensor.shape, tensor.row_stride, dilation, run),
        channels(tensor.shape.channels()),
        data(tensor.floats() + offset) {}

  float* pixel(std::int64_t y, std::int64_t x) const {
    return data + y * row_stride + x * pixel_stride;
  }
};

/// A tile whose 4x4 pixels all exist.
template <std::int64_t kLanes>
void transform_inner_tile(const Image& image, const float* from, float* to, const PointTiles& v) {
  const float* rows[4] = {from, from + image.row_stride, from + 2 * image.row_stride,
                          from + 3 * image.row_stride};
  for_each_vec<kLanes>(image.channels, v.channels, [&](std::int64_t c, auto io) {
    store_input_points<kLanes>(
        [&](int i, int j) { return io.load(rows[i] + j * image.pixel_stride + c); }, to + c,
        v.stride);
  });
}

/// A tile with pixels outside the image.
template <std::int64_t kLanes>
void transform_edge_tile(const Image& image, std::int64_t y, std::int64_t x, float* to,
                         const PointTiles& v) {
  const float* pixels[4][4];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      pixels[i][j] = image.contains(y + i, x + j) ? image.pixel(y + i, x + j) : nullptr;
    }
  }
  for_each_vec<kLanes>(image.channels, v.channels, [&](std::int64_t c, auto io) {
    store_input_points<kLanes>(
        [&](int i, int j) {
          return pixels[i][j] == nullptr ? Vec<kLanes>{} : io.load(pixels[i][j] + c);
        },
        to + c, v.stride);
  });
}

/// A tile of the gradient; `rows`, `columns` (1 or 2): how much of it lies inside the image.
template <std::int64_t kLanes>
void transform_gradient_tile(const Image& image, const float* from, bool two_rows, bool two_columns,
                             float* to, const PointTiles& z) {
  for_each_vec<kLanes>(image.channels, z.channels, [&](std::int64_t c, auto io) {
    const float* y = from + c;
    const Vec<kLanes> zero{};
    const Vec<kLanes> y00 = io.load(y);
    const Vec<kLanes> y01 = two_columns ? io.load(y + image.pixel_stride) : zero;
    const Vec<kLanes> y10 = two_rows ? io.load(y + image.row_stride) : zero;
    const Vec<kLanes> y11 =
        two_rows && two_columns ? io.load(y + image.row_stride + image.pixel_stride) : zero;
    const Column<kLanes> left = gradient_column<kLanes>(y00, y10);
    const Column<kLanes> right = gradient_column<kLanes>(y01, y11);
    const auto store_points = [&](float* row, Vec<kLanes> a, Vec<kLanes> b) {
      const Column<kLanes> points = gradient_column<kLanes>(a, b);
      store<kLanes>(row, points.v0);
      store<kLanes>(row + z.stride, points.v1);
      store<kLanes>(row + 2 * z.stride, points.v2);
      store<kLanes>(row + 3 * z.stride, points.v3);
    };
    store_points(to + c, left.v0, right.v0);
    store_points(to + c + 4 * z.stride, left.v1, right.v1);
    store_points(to + c + 8 * z.stride, left.v2, right.v2);
    store_points(to + c + 12 * z.stride, left.v3, right.v3);
  });
}

/// The output tile from its points; what lies outside the image is dropped.
template <std::int64_t kLanes>
void transform_output_tile(const float* from, const PointTiles& m, const float* bias,
                           const Image& image, float* to, bool two_rows, bool two_columns) {
  for_each_vec<kLanes>(image.channels, image.channels, [&](std::int64_t c, auto io) {
    const auto column = [&](std::int64_t j) {
      const float* points = from + j * m.stride + c;
      return output_pair<kLanes>(load<kLanes>(points), load<kLanes>(points + 4 * m.stride),
                                 load<kLanes>(points + 8 * m.stride),
                                 load<kLanes>(points + 12 * m.stride));
    };
    const Pair<kLanes> p0 = column(0);
    const Pair<kLanes> p1 = column(1);
    const Pair<kLanes> p2 = column(2);
    const Pair<kLanes> p3 = column(3);
    Pair<kLanes> top = output_pair<kLanes>(p0.v0, p1.v0, p2.v0, p3.v0);
    Pair<kLanes> bottom = output_pair<kLanes>(p0.v1, p1.v1, p2.v1, p3.v1);
    if (bias != nullptr) {
      const Vec<kLanes> b = io.load(bias + c);
      top = {top.v0 + b, top.v1 + b};
      bottom = {bottom.v0 + b, bottom.v1 + b};
    }
    float* y = to + c;
    io.store(y, top.v0);
    if (two_columns) io.store(y + image.pixel_stride, top.v1);
    if (two_rows) io.store(y + image.row_stride, bottom.v0);
    if (two_rows && two_columns) io.store(y + image.row_stride + image.pixel_stride, bottom.v1);
  });
}

/// Which pixels of a tile of 2x2 lie inside an image. The first one does where any does.
struct Inside {
  bool any, two_rows, two_columns;

  Inside(const Image& image, std::int64_t y, std::int64_t x)
      : any(image.contains(y, x)),
        two_rows(y + 1 < image.height),
        two_columns(x + 1 < image.width) {}
};

}  // namespace

template <std::int64_t kLanes>
void TileTransforms<kLanes>::input(const Tensor& x, std::int64_t padding_h, std::int64_t padding_w,
                                   const TileGrid& grid, TileRange range, const PointTiles& v) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image image(x, grid.dilation, run);
    const std::int64_t y = 2 * run.row - padding_h;
    const bool inner_row = y >= 0 && y + 4 <= image.height;
    float* to = v.data + run.offset * v.tile_stride;
    for (std::int64_t t = 0; t < run.count; ++t, to += v.tile_stride) {
      const std::int64_t left = 2 * (run.column + t) - padding_w;
      if (inner_row && left >= 0 && left + 4 <= image.width) {
        transform_inner_tile<kLanes>(image, image.pixel(y, left), to, v);
      } else {
        transform_edge_tile<kLanes>(image, y, left, to, v);
      }
    }
  });
}

void for_each_output_run(const Shape& output, const TileGrid& grid, TileRange range,
                         const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  for_each_run(grid, range, [&](const Run& run) {
    const SubGrid pixels(output, 1, grid.dilation, run);
    const std::int64_t begin = 2 * run.column;
    const std::int64_t end = std::min(begin + 2 * run.count, pixels.width);
    for (std::int64_t y = 2 * run.row; y < std::min(2 * run.row + 2, pixels.height); ++y) {
      const std::int64_t row = pixels.offset + y * pixels.row_stride;
      if (pixels.pixel_stride == 1) {
        if (begin < end) body(row + begin, row + end);
        continue;
      }
      for (std::int64_t x = begin; x < end; ++x) {
        const std::int64_t pixel = row + x * pixels.pixel_stride;
        body(pixel, pixel + 1);
      }
    }
  });
}

void prefetch_pixels(const Tensor& tensor, std::int64_t row_offset, const TileGrid& grid,
                     TileRange range, std::int64_t share) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image image(tensor, grid.dilation, run);
    const std::int64_t end = std::min(2 * (run.column + run.count), image.width);
    for (std::int64_t y = 2 * run.row + row_offset; y < 2 * run.row + row_offset + 2; ++y) {
      if (y < 0 || y >= image.height) continue;
      for (std::int64_t x = 2 * run.column + share; x < end; x += kPrefetchShares) {
        const float* pixel = image.pixel(y, x);
        // To the second-level cache: the first one belongs to the products that run now.
        for (std::int64_t c = 0; c < image.channels; c += kLine)
          __builtin_prefetch(pixel + c, 0, 2);
      }
    }
  });
}

template <std::int64_t kLanes>
void TileTransforms<kLanes>::grad_output(const Tensor& grad_y, const TileGrid& grid,
                                         TileRange range, const PointTiles& z) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image image(grad_y, grid.dilation, run);
    for (std::int64_t t = 0; t < run.count; ++t) {
      const std::int64_t y = 2 * run.row, x = 2 * (run.column + t);
      float* to = z.data + (run.offset + t) * z.tile_stride;
      const Inside inside(image, y, x);
      if (inside.any) {
        transform_gradient_tile<kLanes>(image, image.pixel(y, x), inside.two_rows,
                                        inside.two_columns, to, z);
        continue;
      }
      for (std::int64_t p = 0; p < kPoints; ++p) std::fill_n(to + p * z.stride, z.channels, 0.0F);
    }
  });
}

template <std::int64_t kLanes>
void TileTransforms<kLanes>::output(const PointTiles& m, const TileGrid& grid, TileRange range,
                                    const float* bias, const Tensor& y) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image image(y, grid.dilation, run);
    for (std::int64_t t = 0; t < run.count; ++t) {
      const std::int64_t row = 2 * run.row, column = 2 * (run.column + t);
      const Inside inside(image, row, column);
      if (!inside.any) continue;
      transform_output_tile<kLanes>(m.data + (run.offset + t) * m.tile_stride, m, bias, image,
                                    image.pixel(row, column), inside.two_rows, inside.two_columns);
    }
  });
}

template struct TileTransforms<8>;
template struct TileTransforms<16>;

}  // namespace lockstep::winograd
