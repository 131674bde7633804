// BatchNorm's kernels under the emulation: against loops in double in every storage type, the same
// bits whatever the order of threads, the GPU's size and the alignment, and faults that must show.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/batch_norm_call.h"

namespace lockstep::test::batch_norm_call {
namespace {

Result run(const BatchNormCase& p, const Inputs& inputs, const emulation::Options& options = {}) {
  BatchNormCall call(p, inputs);
  Result result = call.run(options);
  CHECK(call.counters_are_zero);
  CHECK(call.margins_untouched);
  return result;
}

void check_against_reference(const BatchNormCase& p) {
  const Inputs inputs(p);
  const Result result = run(p, inputs, {.seed = 5});
  const auto& expected = inputs.output;
  const auto gradients = inputs.reference.backward(expected, widen(inputs.dy));
  const auto channels = static_cast<std::size_t>(p.channels);
  const auto n = static_cast<double>(inputs.reference.rows());
  for (std::size_t c = 0; c < channels; ++c) {
    CHECK(result.saved[c] == doctest::Approx(expected.mean[c]).epsilon(1e-6));
    CHECK(result.saved[channels + c] == doctest::Approx(expected.invstd[c]).epsilon(1e-6));
    CHECK(result.running_mean[c] == doctest::Approx(0.45 + 0.1 * expected.mean[c]).epsilon(1e-6));
    CHECK(result.running_var[c] ==
          doctest::Approx(1.8 + 0.1 * expected.var[c] * n / (n - 1)).epsilon(1e-6));
  }
  CHECK(relative_error(result.y, expected.y, p.dtype) < 2e-6);
  CHECK(relative_error(result.dx, gradients.x, p.dtype) < 1e-5);
  if (p.residual) CHECK(relative_error(result.dresidual, gradients.residual) == 0);
  if (p.affine) {
    CHECK(relative_error(result.weight_gradient, gradients.weight) < 1e-5);
    CHECK(relative_error(result.bias_gradient, gradients.bias) < 1e-5);
  }
}

/// Several blocks in every kernel and several slabs of whole packs.
BatchNormCase several_blocks(DType dtype) {
  BatchNormCase p;
  p.dtype = dtype;
  p.channels = 72;
  p.shards = {901};
  return p;
}

/// Whether some order of threads gives another result of the operation than the right one, or none.
bool fault_shows(BatchNormCall& call, const std::vector<std::uint32_t>& right, Operation operation,
                 emulation::Options fault) {
  for (fault.seed = 0; fault.seed < 100; ++fault.seed) {
    try {
      if (call.repeat(operation, fault).bits() != right) return true;
    } catch (const std::logic_error&) {
      return true;  // threads wait for others that have gone
    }
  }
  return false;
}

}  // namespace

TEST_CASE("BatchNorm kernels match the reference for every storage type and width") {
  for (const DType dtype : kGpuTypes) {
    for (const std::int64_t channels : {1, 3, 8, 11, 64, 72, 257}) {
      for (const Margins margins : {Margins{}, Margins{3, 5}, Margins{8, 8}}) {
        if (margins.before == 8 && channels != 64) continue;  // a range of whole packs
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(channels);
        CAPTURE(margins.before);
        BatchNormCase p;
        p.dtype = dtype;
        p.channels = channels;
        p.margins = margins;
        p.shards = {channels < 16 ? 4501 : 333};
        if (margins.before > 0) p.shards = {131};
        check_against_reference(p);
      }
    }
  }
}

TEST_CASE("BatchNorm kernels match the reference with every option, over uneven and empty shards") {
  for (int bits = 0; bits < 16; ++bits) {
    CAPTURE(bits);
    BatchNormCase p;
    p.dtype = kGpuTypes[static_cast<std::size_t>(bits) % 3];
    p.channels = bits % 2 == 0 ? 24 : 5;
    p.shards = {301, 0, 1, 77};
    p.affine = (bits & 1) != 0;
    p.residual = (bits & 2) != 0;
    p.relu = (bits & 4) != 0;
    p.eps_mode = (bits & 8) != 0 ? EpsMode::kClamp : EpsMode::kAdd;
    p.eps = 1.0F;  // about the variance, so that `clamp` cuts some of them
    check_against_reference(p);
  }
}

TEST_CASE("the variance stays accurate far from zero in every storage type") {
  for (const DType dtype : kGpuTypes) {
    BatchNormCase p = several_blocks(dtype);
    p.offset = 1e4F;
    const Inputs inputs(p);
    const Result result = run(p, inputs);
    for (std::size_t c = 0; c < 72; ++c) {
      CHECK(result.moments[72 + c] / 901 == doctest::Approx(inputs.output.var[c]).epsilon(1e-6));
    }
  }
}

// Deviations from the base are then large in every chunk, and cancel.
TEST_CASE("the variance stays accurate where the base is far from nearly all rows") {
  BatchNormCase p;
  p.channels = 8;
  p.shards = {8000};
  p.spike = 300;
  const Inputs inputs(p);
  const Result result = run(p, inputs);
  for (std::size_t c = 0; c < 8; ++c) {
    CHECK(result.moments[8 + c] / 8000 == doctest::Approx(inputs.output.var[c]).epsilon(1e-6));
  }
}

TEST_CASE("the bits depend neither on the order of threads nor on the GPU's size or alignment") {
  for (const DType dtype : kGpuTypes) {
    BatchNormCase p = several_blocks(dtype);
    p.residual = true;
    const Inputs inputs(p);
    const Result first = run(p, inputs);
    CHECK(std::isfinite(first.saved[0]));  // bits of no numbers are equal in any order
    CHECK(std::isfinite(first.sums[0]));
    const auto expected = first.bits();
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      CHECK(run(p, inputs, {.seed = seed}).bits() == expected);
    }
    p.multiprocessors = 7;
    CHECK(run(p, inputs).bits() == expected);
    p.margins = {3, 0};
    CHECK(run(p, inputs).bits() == expected);
  }
}

TEST_CASE("every barrier and every block of the BatchNorm kernels is needed") {
  BatchNormCase p;
  p.dtype = DType::kBFloat16;
  p.channels = 64;
  p.shards = {300};  // two blocks in each kernel
  const Inputs inputs(p);
  for (const Operation operation : {kMoments, kForward, kReduce, kApply}) {
    CAPTURE(operation);
    BatchNormCall call(p, inputs);
    const Result result = call.run({});
    const auto right = result.bits();
    CHECK(call.repeat(operation, {}).bits() == right);
    const int barriers = result.barriers[operation];
    const bool reduction = operation == kMoments || operation == kReduce;
    CHECK(barriers > (reduction ? 7 : 0));
    for (int barrier = 0; barrier < barriers; ++barrier) {
      // Before a block is counted: needs a rare order among so many threads, see reduce_test.cpp.
      if (reduction && barrier == barriers - 3) continue;
      CAPTURE(barrier);
      CHECK(fault_shows(call, right, operation, {.skipped_barrier = barrier}));
    }
    for (const int block : {0, 1}) {
      CAPTURE(block);
      CHECK(fault_shows(call, right, operation, {.skipped_block = block}));
    }
  }
}

TEST_CASE("the BatchNorm kernels agree with the CPU") {
  const BatchNormCase p = several_blocks(DType::kFloat32);
  const Inputs inputs(p);
  const Result result = run(p, inputs);
  const auto cpu = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  Values x = inputs.x, dy = inputs.dy, y(x.size()), dx(x.size());
  Values moments(144), saved(216), sums(144);
  const auto tensor = [](Values& values) { return Tensor(values.data(), {901, 72}); };
  const AffineParameters affine{inputs.weight.data(), inputs.bias.data()};
  const BatchNormSaved kept{saved.data()};
  const StatSlot slot{901, moments.data()}, sum_slot{901, sums.data()};
  cpu->norms().batch_norm_moments(tensor(x), moments.data(), 1);
  cpu->norms().batch_norm_forward({tensor(x),
                                   {},
                                   tensor(y),
                                   affine,
                                   {&slot, 1},
                                   p.eps,
                                   p.eps_mode,
                                   p.relu,
                                   kept,
                                   RunningStatistics{}});
  cpu->norms().batch_norm_backward_reduce(
      {tensor(x), tensor(dy), {}, affine, kept, p.relu, sums.data(), nullptr, nullptr});
  cpu->norms().batch_norm_backward_apply(
      {tensor(x), tensor(dy), {}, affine, kept, p.relu, {&sum_slot, 1}, tensor(dx), {}, false});
  CHECK(relative_error(result.moments, widen(moments)) < 1e-6);
  CHECK(relative_error(result.saved, widen(saved)) < 1e-6);
  CHECK(relative_error(result.y, widen(y)) < 1e-6);
  CHECK(relative_error(result.sums, widen(sums)) < 1e-6);
  CHECK(relative_error(result.dx, widen(dx)) < 2e-6);
}

/// Slots of many replicas, with uneven counts, some without rows.
struct ManySlots {
  std::vector<Values> memory;
  std::vector<StatSlot> slots;

  ManySlots(int count, std::int64_t channels, std::uint32_t seed) {
    for (int i = 0; i < count; ++i) {
      memory.push_back(random_values({2, channels}, seed + static_cast<std::uint32_t>(i)));
      for (float& value : std::span(memory.back()).last(static_cast<std::size_t>(channels))) {
        value = std::abs(value) * 7;  // M2
      }
    }
    for (int i = 0; i < count; ++i) {
      const std::int64_t rows = i % 5 == 3 ? 0 : 1 + i * 37 % 11;
      slots.push_back({rows, memory[static_cast<std::size_t>(i)].data()});
    }
  }
};

/// saved and running statistics of a call over given slots; dx of rows equal to the mean, which is
/// the mean gradient's part alone, and of others without a mean gradient: that of the projection.
/// (Both parts at once would show how a compiler fuses them.)
template <typename Forward, typename Apply>
Values merged_results(const ManySlots& moments, const ManySlots& sums, const Forward& forward,
                      const Apply& apply) {
  constexpr std::int64_t kChannels = 11;
  Values x(kChannels, 0.5F), y(kChannels), dx(kChannels), saved(3 * kChannels);
  Values mean(kChannels, 0.25F), var(kChannels, 2.0F), zeros(kChannels);
  const auto row = [](Values& values) { return Tensor(values.data(), {1, kChannels}); };
  BatchNormForward f;
  f.x = row(x);
  f.y = row(y);
  f.slots = moments.slots;
  f.saved = {saved.data()};
  f.running = {mean.data(), var.data(), 0.1};
  forward(f);
  BatchNormBackwardApply a;
  a.grad_y = row(zeros);
  a.saved = {saved.data()};
  a.slots = sums.slots;
  a.grad_x = row(dx);
  Values all = saved;
  append(all, mean);
  append(all, var);
  a.x = Tensor(saved.data(), {1, kChannels});
  apply(a);
  append(all, dx);
  ManySlots products = sums;
  for (std::size_t i = 0; i < products.memory.size(); ++i) {
    std::fill_n(products.memory[i].begin(), kChannels, 0.0F);
    products.slots[i].data = products.memory[i].data();
  }
  a.slots = products.slots;
  a.x = row(x);
  apply(a);
  append(all, dx);
  return all;
}

TEST_CASE("slots of any number of replicas are merged to the CPU's bits") {
  const auto cpu = cpu_backend();
  EmulatedGpu emulated(2);
  for (const int count : {1, 2, 3, 7, 8, 9, 10, 16, 17, 64}) {
    CAPTURE(count);
    ManySlots moments(count, 11, 100);
    const ManySlots sums(count, 11, 900);
    moments.slots[0].count = 6;  // alone it needs more than one row
    const Values expected = merged_results(
        moments, sums, [&](const BatchNormForward& a) { cpu->norms().batch_norm_forward(a); },
        [&](const BatchNormBackwardApply& a) { cpu->norms().batch_norm_backward_apply(a); });
    const Values merged = merged_results(
        moments, sums, [&](const BatchNormForward& a) { emulated.norms().batch_norm_forward(a); },
        [&](const BatchNormBackwardApply& a) { emulated.norms().batch_norm_backward_apply(a); });
    CHECK(merged == expected);
  }
}

TEST_CASE("rows are normalised again by what a call kept, to its bits") {
  constexpr std::int64_t kChannels = 11;
  EmulatedGpu emulated(2);
  ManySlots moments(3, kChannels, 100);
  Values x(6 * kChannels), y(x.size()), saved(3 * kChannels);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.25F * static_cast<float>(i % 7);
  BatchNormForward f;
  f.x = Tensor(x.data(), {6, kChannels});
  f.y = Tensor(y.data(), {6, kChannels});
  f.slots = moments.slots;
  f.saved = {saved.data()};
  f.relu = true;
  emulated.norms().batch_norm_forward(f);
  const Values whole = y;
  std::fill(y.begin(), y.end(), 7.0F);
  f.slots = {};
  for (const auto& [first, count] : {std::pair{0, 4}, {4, 2}, {6, 0}}) {
    f.x = Tensor(x.data(), {6, kChannels}).sample_range(first, count);
    f.y = Tensor(y.data(), {6, kChannels}).sample_range(first, count);
    emulated.norms().batch_norm_forward(f);
  }
  CHECK(y == whole);
}

TEST_CASE("kernels may start early, but behind an exchange") {
  BatchNormCase p;
  p.channels = 12;
  for (const bool alone : {true, false}) {
    p.shards = alone ? std::vector<std::int64_t>{300} : std::vector<std::int64_t>{100, 200};
    const Inputs inputs(p);
    BatchNormCall plain(p, inputs), early(p, inputs);
    early.use_dependent_launches();
    const std::int64_t before = emulation::dependent_launches();
    const auto expected = plain.run({}).bits();
    CHECK(emulation::dependent_launches() == before);
    CHECK(early.run({}).bits() == expected);
    CHECK(emulation::dependent_launches() == before + 4);  // moments and reduce of both replicas
  }
}

TEST_CASE("a replica without rows hands in zeros and still gets the statistics") {
  BatchNormCase p;
  p.channels = 12;
  p.shards = {0, 300};
  const Inputs inputs(p);
  const Result empty = run(p, inputs);
  CHECK(empty.moments == Values(24));
  CHECK(empty.sums == Values(24));
  p.shards = {300, 0};
  const Result full = run(p, inputs);
  CHECK(empty.saved == full.saved);
  CHECK(empty.running_mean == full.running_mean);
  CHECK(empty.running_var == full.running_var);
  CHECK(empty.y == full.y);
}

TEST_CASE("slots that cannot be merged and types without a kernel are errors") {
  EmulatedGpu emulated(1);
  Values x(4, 1), y(4), moments = {1, 0}, saved(3);
  std::vector<StatSlot> slots(65, StatSlot{1, moments.data()});
  BatchNormForward a;
  a.x = Tensor(x.data(), {4, 1});
  a.y = Tensor(y.data(), {4, 1});
  a.saved = {saved.data()};
  a.slots = slots;
  CHECK_THROWS_WITH_AS(emulated.norms().batch_norm_forward(a), doctest::Contains("at most 64"),
                       Error);
  slots[5] = StatSlot{};  // an empty one takes no place
  emulated.norms().batch_norm_forward(a);
  CHECK(saved[0] == 1);
  a.slots = std::span(slots).first(1);
  CHECK_THROWS_WITH_AS(emulated.norms().batch_norm_forward(a), doctest::Contains("at least 2 rows"),
                       Error);
  const Tensor bytes(x.data(), {4, 1}, DType::kUInt8);
  CHECK_THROWS_WITH_AS(emulated.norms().batch_norm_moments(bytes, moments.data(), 1),
                       doctest::Contains("got uint8"), Error);
}

}  // namespace lockstep::test::batch_norm_call
