#pragma once
// Products of matrices whose factors are bf16 numbers and whose sums are fp32: the only thing here
// that depends on the processor's instructions.

#include <cstdint>

#include "backend/cpu/conv/bf16/instructions.h"
#include "backend/cpu/conv/bf16/numbers.h"

namespace lockstep::bf16 {

inline constexpr std::int64_t kTile = 16;   // rows and columns of a tile of sums
inline constexpr std::int64_t kDepth = 32;  // what a step multiplies of a row and of a column
/// Numbers of the right factor of a tile in a step: [kDepth / 2, kTile, 2], pairs of one column.
inline constexpr std::int64_t kTileNumbers = kDepth * kTile;

/// Sums of one or two tiles of rows and as many of columns, over a number of steps.
struct Block {
  const Number* a = nullptr;  // row r of the left factor is at a + r * a_stride
  std::int64_t a_stride = 0;
  const std::int64_t* steps = nullptr;  // where in a row each step's numbers begin
  std::int64_t step_count = 0;
  const Number* b = nullptr;  // [step, column tile, kDepth / 2, kTile, 2]
  int row_tiles = 2, column_tiles = 2;
  float* c = nullptr;  // the sums
  std::int64_t c_stride = 0;
  bool add = false;  // c += the sums, which are added one step after the other, else c =
};

/// While it lives its thread can multiply. AMX has a state that has to be set up and given back.
/// REQUIRES: usable(instructions).
class Products {
 public:
  explicit Products(Instructions instructions);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void multiply(const Block& block) const { multiply_(block); }

 private:
  const Instructions instructions_;
  void (*multiply_)(const Block& block);
};

}  // namespace lockstep::bf16
