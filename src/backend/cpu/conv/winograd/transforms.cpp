// The transforms of tiles.

#include "backend/cpu/conv/winograd/transforms.h"

#include <algorithm>
#include <cstddef>

#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/conv/winograd/filter.h"
#include "backend/cpu/element.h"
#include "backend/cpu/simd.h"

namespace lockstep::winograd {

using namespace matmul;
using namespace simd;

namespace {

/// Loads and stores of whole vectors, and of those that end beyond the channels of a pixel.
template <std::int64_t kLanes>
struct WholeVec {
  template <typename T>
  Vec<kLanes> load(const T* from) const {
    return simd::load<kLanes>(from);
  }
  template <typename T>
  void store(T* to, Vec<kLanes> v) const {
    simd::store<kLanes>(to, v);
  }
};
template <std::int64_t kLanes>
struct PartialVec {
  std::int64_t count;
  template <typename T>
  Vec<kLanes> load(const T* from) const {
    return load_partial<kLanes>(from, count);
  }
  template <typename T>
  void store(T* to, Vec<kLanes> v) const {
    store_partial<kLanes>(to, v, count);
  }
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
template <typename T>
struct Image : SubGrid {
  std::int64_t channels;
  T* data;

  Image(const Tensor& tensor, const Dilation& dilation, const Run& run)
      : SubGrid(tensor.shape, tensor.row_stride, dilation, run),
        channels(tensor.shape.channels()),
        data(static_cast<T*>(tensor.data) + offset) {}

  T* pixel(std::int64_t y, std::int64_t x) const {
    return data + y * row_stride + x * pixel_stride;
  }
};

/// How much of a tile lies inside an image, from its first pixel on.
struct Inside {
  std::int64_t rows, columns;

  Inside(const SubGrid& image, std::int64_t tile, std::int64_t y, std::int64_t x)
      : rows(std::clamp<std::int64_t>(image.height - y, 0, tile)),
        columns(std::clamp<std::int64_t>(image.width - x, 0, tile)) {}

  bool contains(int row, int column) const { return row < rows && column < columns; }
};

/// The points of the tiles with vectors of kLanes floats.
template <std::int64_t kLanes, int kTile, typename T>
struct OneTile {
  using V = Vec<kLanes>;
  using Filter = winograd::Filter<kTile>;
  static constexpr int kSide = kTile + 2;

  /// Of an input tile whose pixels all exist.
  static void inner(const Image<T>& image, const T* from, float* to, const PointTiles& v) {
    const T* rows[kSide];
    for (int i = 0; i < kSide; ++i) rows[i] = from + i * image.row_stride;
    input(
        image, to,
        v, [&](int i, int j, std::int64_t c, const auto& io) __attribute__((always_inline)) {
          return io.load(rows[i] + j * image.pixel_stride + c);
        });
  }

  /// Of one with pixels outside the image.
  static void edge(const Image<T>& image, std::int64_t y, std::int64_t x, float* to,
                   const PointTiles& v) {
    const T* pixels[kSide][kSide];
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) {
        pixels[i][j] = image.contains(y + i, x + j) ? image.pixel(y + i, x + j) : nullptr;
      }
    }
    input(
        image, to,
        v, [&](int i, int j, std::int64_t c, const auto& io) __attribute__((always_inline)) {
          return pixels[i][j] == nullptr ? V{} : io.load(pixels[i][j] + c);
        });
  }

  static void grad_output(const Image<T>& image, const T* from, const Inside& inside, float* to,
                          const PointTiles& z) {
    for_each_vec<kLanes>(image.channels, z.channels, [&](std::int64_t c, auto io) {
      transform<Filter::template output_gradient<V>, kTile, kSide, V>(
          [&](int i, int j) __attribute__((always_inline)) {
            return inside.contains(i, j)
                       ? io.load(from + i * image.row_stride + j * image.pixel_stride + c)
                       : V{};
          },
          [&](int i, int j, V value) __attribute__((always_inline)) {
            simd::store<kLanes>(to + (i * kSide + j) * z.stride + c, value);
          });
    });
  }

  static void output(const float* from, const PointTiles& m, const float* bias,
                     const Image<T>& image, T* to, const Inside& inside) {
    for_each_vec<kLanes>(image.channels, image.channels, [&](std::int64_t c, auto io) {
      const V added = bias != nullptr ? io.load(bias + c) : V{};
      transform<Filter::template output<V>, kSide, kTile, V>(
          [&](int i, int j) __attribute__((always_inline)) {
            return simd::load<kLanes>(from + (i * kSide + j) * m.stride + c);
          },
          [&](int i, int j, V value) __attribute__((always_inline)) {
            if (!inside.contains(i, j)) return;
            io.store(to + i * image.row_stride + j * image.pixel_stride + c,
                     bias != nullptr ? value + added : value);
          });
    });
  }

 private:
  /// pixel(row, column, channel, io). Of rows first, then of columns.
  template <class Pixel>
  static void input(const Image<T>& image, float* to, const PointTiles& v, const Pixel& pixel) {
    for_each_vec<kLanes>(image.channels, v.channels, [&](std::int64_t c, auto io) {
      transform<Filter::template input<V>, kSide, kSide, V>(
          [&](int j, int i) __attribute__((always_inline)) { return pixel(i, j, c, io); },
          [&](int j, int i, V value) __attribute__((always_inline)) {
            simd::store<kLanes>(to + (i * kSide + j) * v.stride + c, value);
          });
    });
  }
};

}  // namespace

template <std::int64_t kLanes, int kTile, typename T>
void TileTransforms<kLanes, kTile, T>::input(const Tensor& x, std::int64_t padding_h,
                                             std::int64_t padding_w, const TileGrid& grid,
                                             TileRange range, const PointTiles& v) {
  using Tile = OneTile<kLanes, kTile, T>;
  for_each_run(grid, range, [&](const Run& run) {
    const Image<T> image(x, grid.dilation, run);
    const std::int64_t y = kTile * run.row - padding_h;
    const bool inner_row = y >= 0 && y + Tile::kSide <= image.height;
    float* to = v.data + run.offset * v.tile_stride;
    for (std::int64_t t = 0; t < run.count; ++t, to += v.tile_stride) {
      const std::int64_t left = kTile * (run.column + t) - padding_w;
      if (inner_row && left >= 0 && left + Tile::kSide <= image.width) {
        Tile::inner(image, image.pixel(y, left), to, v);
      } else {
        Tile::edge(image, y, left, to, v);
      }
    }
  });
}

void for_each_output_run(const Shape& output, const TileGrid& grid, TileRange range,
                         const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  for_each_run(grid, range, [&](const Run& run) {
    const SubGrid pixels(output, 1, grid.dilation, run);
    const std::int64_t begin = grid.tile * run.column, top = grid.tile * run.row;
    const std::int64_t end = std::min(begin + grid.tile * run.count, pixels.width);
    for (std::int64_t y = top; y < std::min(top + grid.tile, pixels.height); ++y) {
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
  with_computed_type(tensor.dtype, [&]<typename T>(T) {
    constexpr auto kValuesOfLine = static_cast<std::int64_t>(kLine * sizeof(float) / sizeof(T));
    for_each_run(grid, range, [&](const Run& run) {
      const Image<const T> image(tensor, grid.dilation, run);
      const std::int64_t end = std::min(grid.tile * (run.column + run.count), image.width);
      const std::int64_t top = grid.tile * run.row + row_offset;
      for (std::int64_t y = top; y < top + grid.tile; ++y) {
        if (y < 0 || y >= image.height) continue;
        for (std::int64_t x = grid.tile * run.column + share; x < end; x += kPrefetchShares) {
          const T* pixel = image.pixel(y, x);
          // To the second-level cache: the first one belongs to the products that run now.
          for (std::int64_t c = 0; c < image.channels; c += kValuesOfLine) {
            __builtin_prefetch(pixel + c, 0, 2);
          }
        }
      }
    });
  });
}

template <std::int64_t kLanes, int kTile, typename T>
void TileTransforms<kLanes, kTile, T>::grad_output(const Tensor& grad_y, const TileGrid& grid,
                                                   TileRange range, const PointTiles& z) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image<T> image(grad_y, grid.dilation, run);
    for (std::int64_t t = 0; t < run.count; ++t) {
      const std::int64_t y = kTile * run.row, x = kTile * (run.column + t);
      float* to = z.data + (run.offset + t) * z.tile_stride;
      OneTile<kLanes, kTile, T>::grad_output(image, image.pixel(y, x), Inside(image, kTile, y, x),
                                             to, z);
    }
  });
}

template <std::int64_t kLanes, int kTile, typename T>
void TileTransforms<kLanes, kTile, T>::output(const PointTiles& m, const TileGrid& grid,
                                              TileRange range, const float* bias, const Tensor& y) {
  for_each_run(grid, range, [&](const Run& run) {
    const Image<T> image(y, grid.dilation, run);
    for (std::int64_t t = 0; t < run.count; ++t) {
      const std::int64_t row = kTile * run.row, column = kTile * (run.column + t);
      OneTile<kLanes, kTile, T>::output(m.data + (run.offset + t) * m.tile_stride, m, bias, image,
                                        image.pixel(row, column),
                                        Inside(image, kTile, row, column));
    }
  });
}

template struct TileTransforms<8, 2, float>;
template struct TileTransforms<16, 2, float>;
template struct TileTransforms<8, 4, float>;
template struct TileTransforms<16, 4, float>;
template struct TileTransforms<8, 4, BFloat16>;
template struct TileTransforms<16, 4, BFloat16>;

}  // namespace lockstep::winograd
