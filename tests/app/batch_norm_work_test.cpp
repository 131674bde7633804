// What `bench batch_norm` and cudnn_batch_norm compute with.

#include "app/bench/batch_norm_work.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

namespace lockstep {
namespace {

TEST_CASE("values are the same in every type, and repeat") {
  const std::vector<float> values = batch_norm_values(kValuesPeriod + 64, 64);
  const std::vector<std::uint16_t> bf16 = narrow_values(values, DType::kBFloat16);
  const std::vector<std::uint16_t> fp16 = narrow_values(values, DType::kFloat16);
  std::size_t differ = 0;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    differ += std::bit_cast<float>(std::uint32_t{bf16[i]} << 16) == values[i] ? 0 : 1;
    differ += static_cast<float>(std::bit_cast<_Float16>(fp16[i])) == values[i] ? 0 : 1;
    squares += values[i] * values[i];
  }
  CHECK(differ == 0);
  CHECK(std::equal(values.end() - 64, values.end(), values.begin()));
  CHECK(std::sqrt(squares / static_cast<double>(values.size())) ==
        doctest::Approx(kBatchNormDeviation).epsilon(0.02));
}

TEST_CASE("every type stands beside cuDNN with a residual and on several GPUs") {
  std::set<DType> residual, group;
  for (const BatchNormWork& work : gpu_batch_norm_work()) {
    if (has_residual(work)) residual.insert(work.dtype);
    CHECK(work.tensor_bytes() <= static_cast<double>(work.bytes));
    CHECK(work.tensor_bytes() > 0.99 * static_cast<double>(work.bytes));
    CHECK(kValuesPeriod % work.channels == 0);
    CHECK(passes_between_synchronizations(work.bytes) >= 16);
  }
  for (const BatchNormWork& work : group_batch_norm_work()) group.insert(work.dtype);
  const std::set<DType> all{DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  CHECK(residual == all);
  CHECK(group == all);
}

}  // namespace
}  // namespace lockstep
