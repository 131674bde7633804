#include "lockstep/core/tensor.h"

#include <doctest/doctest.h>

#include <vector>

namespace lockstep {

TEST_CASE("views of channels and samples address the right elements") {
  std::vector<float> memory(2 * 3 * 5);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const Tensor whole(memory.data(), {2, 3, 5});
  const Tensor part = whole.channel_range(1, 2);
  CHECK(part.shape == Shape{2, 3, 2});
  CHECK_FALSE(part.dense());
  CHECK(part.floats()[0] == 1);
  CHECK(part.floats()[part.row_stride] == 6);
  const Tensor second = part.sample_range(1, 1);
  CHECK(second.shape == Shape{1, 3, 2});
  CHECK(second.floats()[0] == 16);
  CHECK_THROWS_AS(whole.channel_range(4, 2), Error);
  CHECK_THROWS_AS(whole.sample_range(1, 2), Error);
  CHECK_THROWS_AS(Tensor(memory.data(), {2, 3}, DType::kUInt8).floats(), Error);
}

TEST_CASE("storage is released once, also after a move") {
  int released = 0;
  int block = 0;
  {
    Storage first(&block, sizeof(block), [&](void*) { ++released; });
    Storage second(std::move(first));
    Storage third;
    third = std::move(second);
    CHECK(third.data() == &block);
    CHECK(released == 0);
  }
  CHECK(released == 1);
}

}  // namespace lockstep
