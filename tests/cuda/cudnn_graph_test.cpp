// Convolutions as cuDNN sees them, planned for GPUs that need not be there (described_gpu.h).

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/described_gpu.h"
#include "kernels/cudnn/engine_search.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {
namespace {

struct Case {
  const char* name;
  ConvGeometry geometry;
  Shape input;
};

ConvGeometry geometry(std::int64_t in, std::int64_t out, std::int64_t kernel,
                      std::int64_t padding) {
  ConvGeometry g;
  g.in_channels = in;
  g.out_channels = out;
  g.kernel_h = g.kernel_w = kernel;
  g.padding_h = g.padding_w = padding;
  return g;
}

std::vector<Case> cases() {
  ConvGeometry strided = geometry(5, 7, 3, 1);
  strided.stride_h = strided.stride_w = 2;
  ConvGeometry dilated = geometry(8, 8, 3, 2);
  dilated.dilation_h = dilated.dilation_w = 2;
  const ConvGeometry uneven{4, 6, 3, 5, 2, 1, 0, 2, 1, 2, 1};
  ConvGeometry grouped = geometry(8, 12, 3, 1);
  grouped.groups = 4;
  ConvGeometry depthwise = geometry(16, 16, 3, 1);
  depthwise.groups = 16;
  return {{"first layer", geometry(3, 16, 3, 1), {8, 180, 240, 3}},
          {"3x3", geometry(16, 16, 3, 1), {8, 180, 240, 16}},
          {"after a concatenation", geometry(48, 16, 3, 1), {1, 90, 120, 48}},
          {"deepest stage", geometry(128, 128, 3, 1), {2, 22, 30, 128}},
          {"head", geometry(16, 11, 1, 0), {8, 180, 240, 16}},
          {"one channel", geometry(1, 1, 3, 1), {2, 5, 6, 1}},
          {"single pixel", geometry(16, 24, 3, 1), {3, 1, 1, 16}},
          {"stride 2", strided, {2, 11, 12, 5}},
          {"dilation 2", dilated, {2, 10, 9, 8}},
          {"uneven everything", uneven, {2, 13, 15, 4}},
          {"groups", grouped, {2, 7, 8, 8}},
          {"depthwise", depthwise, {2, 7, 8, 16}}};
}

constexpr std::size_t kLimit = 6;

/// Plans among the first engines that fit into the least workspace that any GPU grants.
std::size_t count_plans(const ConvProblem& problem, WeightOrder order, const CudnnTarget& target) {
  std::size_t plans = 0;
  std::string reason;
  auto engines = find_engines(problem, order, target, false);
  for (std::size_t i = 0; i < std::min(engines.size(), kLimit); ++i) {
    const CudnnPlan plan = make_plan(std::move(engines[i]), reason);
    plans += plan.plan.get() != nullptr && plan.workspace <= most_workspace(0) ? 1 : 0;
  }
  return plans;
}

struct Precision {
  DType dtype;
  bool tf32;
};

void check_every_case(const std::string& device, const Precision& precision) {
  CAPTURE(device);
  CAPTURE(std::string(to_string(precision.dtype)));
  const CudnnDescriptor properties = device_properties(device);
  if (properties.get() == nullptr) return;
  const CudnnTarget target{nullptr, &properties};
  for (const Case& c : cases()) {
    CAPTURE(std::string(c.name));
    for (const ConvPass pass :
         {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
      CAPTURE(std::string(to_string(pass)));
      const ConvProblem problem{c.geometry, c.input, pass, precision.dtype, precision.tf32};
      CHECK(count_plans(problem, WeightOrder::kOutInTaps, target) > 0);
      CHECK(count_plans(problem, WeightOrder::kOutTapsIn, target) > 0);
    }
  }
}

TEST_CASE("every geometry and pass has deterministic plans, on Ampere and on Hopper") {
  for (const Precision& precision :
       {Precision{DType::kFloat32, false}, Precision{DType::kFloat32, true},
        Precision{DType::kBFloat16, false}, Precision{DType::kFloat16, false}}) {
    check_every_case(device_json("NVIDIA A100-SXM4-80GB", 800, 108, 166912), precision);
    check_every_case(device_json("NVIDIA H100 80GB HBM3", 900, 132, 232448), precision);
  }
}

// Turing has no bf16: "no such type" is then the user's to hear (CudaBackend::prepare_conv2d).
TEST_CASE("workstation GPUs have plans: Turing in fp32 and fp16, Ada and Blackwell in all") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    check_every_case(device_json("NVIDIA GeForce RTX 2080 Ti", 750, 68, 65536), {dtype, false});
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    check_every_case(device_json("NVIDIA GeForce RTX 4090", 890, 128, 101376), {dtype, false});
    check_every_case(device_json("NVIDIA GeForce RTX 5090", 1200, 170, 101376), {dtype, false});
  }
}

TEST_CASE("TF32 is taken where it is asked for only") {
  const CudnnDescriptor properties =
      device_properties(device_json("NVIDIA H100 80GB HBM3", 900, 132, 232448));
  if (properties.get() == nullptr) return;
  const CudnnTarget target{nullptr, &properties};
  ConvProblem problem{geometry(128, 128, 3, 1), {2, 22, 30, 128}, ConvPass::kForward};
  const auto engines = [&] {
    return find_engines(problem, WeightOrder::kOutTapsIn, target, false).size();
  };
  const std::size_t exact = engines();
  problem.tf32 = true;
  CHECK(engines() > exact);
  problem.dtype = DType::kBFloat16;
  const std::size_t narrow = engines();
  problem.tf32 = false;
  CHECK(engines() == narrow);
}

TEST_CASE("engines have names of their own, by which they are found again") {
  const CudnnDescriptor properties =
      device_properties(device_json("NVIDIA H100 80GB HBM3", 900, 132, 232448));
  if (properties.get() == nullptr) return;
  const ConvProblem problem{
      geometry(64, 64, 3, 1), {8, 90, 120, 64}, ConvPass::kForward, DType::kBFloat16};
  const auto names = [&] {
    std::vector<std::string> all;
    for (const CudnnDescriptor& engine :
         find_engines(problem, WeightOrder::kOutTapsIn, {nullptr, &properties}, false)) {
      all.push_back(to_string(identify(engine, WeightOrder::kOutTapsIn)));
    }
    return all;
  };
  std::vector<std::string> first = names();
  CHECK(first.size() > 5);
  CHECK(names() == first);
  for (const std::string& name : first) CHECK(parse_engine(name));
  MESSAGE("the most promising: " << first[0] << "; the next: " << first[1]);
  std::sort(first.begin(), first.end());
  CHECK(std::adjacent_find(first.begin(), first.end()) == first.end());
}

TEST_CASE("exact fp32 takes no Winograd of 4x4, and TF32 no engine that may round to fp16") {
  const CudnnDescriptor properties =
      device_properties(device_json("NVIDIA GeForce RTX 4090", 890, 128, 101376));
  if (properties.get() == nullptr) return;
  ConvProblem problem{geometry(128, 128, 3, 1), {2, 22, 30, 128}, ConvPass::kForward};
  const auto has = [&](cudnnBackendNumericalNote_t note) {
    for (const CudnnDescriptor& engine :
         find_engines(problem, WeightOrder::kOutTapsIn, {nullptr, &properties}, false)) {
      if (has_numerical_note(engine, note)) return true;
    }
    return false;
  };
  CHECK_FALSE(has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4));
  CHECK_FALSE(has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  problem.tf32 = true;
  CHECK(has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4));
  CHECK(has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  CHECK_FALSE(has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
}

TEST_CASE("weights that are not channels-last are reordered in every call") {
  const CudnnDescriptor properties =
      device_properties(device_json("NVIDIA H100 80GB HBM3", 900, 132, 232448));
  if (properties.get() == nullptr) return;
  const CudnnTarget target{nullptr, &properties};
  const ConvGeometry g = geometry(64, 64, 3, 1);
  const auto weight_bytes =
      static_cast<std::size_t>(g.weight_elements()) * size_of(DType::kBFloat16);
  for (const ConvPass pass : {ConvPass::kForward, ConvPass::kBackwardData}) {
    CAPTURE(std::string(to_string(pass)));
    const ConvProblem problem{g, {8, 360, 480, 64}, pass, DType::kBFloat16};
    const auto workspace = [&](WeightOrder order) {
      std::string reason;
      auto engines = find_engines(problem, order, target, false);
      REQUIRE(!engines.empty());
      return make_plan(std::move(engines[0]), reason).workspace;
    };
    CHECK(workspace(WeightOrder::kOutTapsIn) < 1024);
    CHECK(workspace(WeightOrder::kOutInTaps) >= weight_bytes);
  }
}

TEST_CASE("what cuDNN cannot take is an error, or a plan that is not there") {
  const CudnnDescriptor properties =
      device_properties(device_json("NVIDIA H100 80GB HBM3", 900, 132, 232448));
  if (properties.get() == nullptr) return;
  ConvProblem wrong{geometry(16, 16, 3, 1), {2, 8, 8, 15}, ConvPass::kForward};
  CHECK_THROWS_AS(find_engines(wrong, WeightOrder::kOutInTaps, {nullptr, &properties}, false),
                  Error);
  std::string reason;
  const CudnnPlan plan = make_plan(CudnnDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), reason);
  CHECK(plan.plan.get() == nullptr);
  CHECK(reason != "");
}

TEST_CASE("a variant pack binds three tensors") {
  float memory[12] = {};
  void* tensors[3] = {memory, memory + 4, memory + 8};
  CHECK(make_variant_pack(tensors, nullptr).get() != nullptr);
  CHECK_THROWS_AS(make_variant_pack(std::span<void* const>(tensors, 2), nullptr), Error);
}

}  // namespace
}  // namespace lockstep::gpu
