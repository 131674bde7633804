// Every convolution of the configurations that are shipped, and of the networks that the benchmarks
// and the tables of the documentation train, planned by cuDNN for GPUs that need not be there. A
// shape that an engine refuses, or an engine that asks for more workspace than it may have, shows
// before a card is at hand.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "cuda/described_gpu.h"
#include "kernels/cudnn/engine_search.h"
#include "lockstep/parallel/data_parallel.h"
#include "nn/layers/conv2d_layer.h"

namespace lockstep::gpu {
namespace {

struct Gpu {
  const char* name;
  int version, multiprocessors, shared_bytes;  // device_json
  std::size_t mebibytes;                       // of memory, as nvidia-smi has it

  std::size_t bytes() const { return mebibytes << 20; }
  CudnnDescriptor properties() const {
    return device_properties(device_json(name, version, multiprocessors, shared_bytes, bytes()));
  }
};

constexpr std::array kGpus{Gpu{"NVIDIA H200", 900, 132, 232448, 143771},
                           Gpu{"NVIDIA GeForce RTX 4090", 890, 128, 101376, 24564},
                           Gpu{"NVIDIA GeForce RTX 5090", 1200, 170, 101376, 32607},
                           Gpu{"NVIDIA GeForce RTX 2080 Ti", 750, 68, 65536, 11264}};

struct Precision {
  DType dtype = DType::kFloat32;
  bool tf32 = true;  // run.tf32

  bool exact() const { return dtype == DType::kFloat32 && !tf32; }
};

std::string to_string(const Precision& precision) {
  return concat(lockstep::to_string(precision.dtype), precision.exact() ? " without TF32" : "");
}

/// Turing has neither bf16 nor TF32. Exact fp32 is planned where its engines were missed most.
std::vector<Precision> precisions_of(const Gpu& gpu) {
  if (gpu.version < 800) return {{}, {DType::kFloat16}};
  if (gpu.version == 900) return {{}, {DType::kBFloat16}, {DType::kFloat32, false}};
  return {{}, {DType::kBFloat16}};
}

// --- what is trained

struct Training {
  std::string name;
  Config config;
};

std::vector<Training> trainings() {
  const std::filesystem::path configs = "data/configs";
  std::vector<Training> all;
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    all.push_back({entry.path().stem().string(), load_config(entry.path(), {})});
  }
  const auto add = [&](const std::string& name, std::vector<std::string> settings, int batch,
                       int height, int width) {
    settings.push_back(concat("batch.global=", batch));
    settings.push_back(concat("data.augment.crop=[", height, ", ", width, "]"));
    all.push_back({name, load_config(configs / "streets.toml", settings)});
  };
  const std::vector<std::string> voc{"data.layout=voc", "data.root=none", "data.num_classes=21"};
  const std::vector<std::string> imagenet{"data.layout=imagefolder", "data.root=none",
                                          "data.num_classes=1000"};
  const auto with = [](std::vector<std::string> settings, const std::string& arch) {
    settings.push_back("model.arch=" + arch);
    return settings;
  };
  add("U-Net 16", {"model.width=16", "model.depth=4"}, 8, 176, 240);
  add("U-Net 64", {"model.width=64", "model.depth=4"}, 8, 360, 480);
  add("fcn_resnet50", with(voc, "fcn_resnet50"), 16, 512, 512);
  add("deeplabv3_resnet50", with(voc, "deeplabv3_resnet50"), 16, 512, 512);
  add("resnet50", with(imagenet, "resnet50"), 32, 224, 224);
  add("resnext50_32x4d", with(imagenet, "resnext50_32x4d"), 32, 224, 224);
  return all;
}

Size training_size(const DataOptions& data) {
  if (data.augment && data.augment->crop) return *data.augment->crop;
  return data.resize.value_or(data.size);
}

// --- its convolutions

/// A linear layer's rows are one column of pixels.
Shape as_image(const Shape& shape) {
  if (shape.rank() == 4) return shape;
  return {shape.batch(), shape.rows_per_sample(), 1, shape.channels()};
}

/// Every pass of every convolution of a replica with so many images; equal ones once. In fp32.
std::vector<ConvProblem> problems_of(const Config& config, std::int64_t images) {
  const auto backend = make_backend(Device{DeviceKind::kCpu, 0, 0}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store, NormLayer(config.bn));
  const Size size = training_size(config.data);
  const Value* input = net.input({images, size.height, size.width, 3});
  std::vector<const Value*> wanted;
  for (const Output& output :
       config.architecture().model(net, const_cast<Value*>(input), NormLayer(config.bn))) {
    wanted.push_back(output.value);
  }
  std::vector<ConvProblem> problems;
  for (const Layer* layer : net.layers_to(wanted)) {
    const auto* conv = dynamic_cast<const Conv2dLayer*>(layer);
    if (conv == nullptr) continue;
    for (const ConvPass pass :
         {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
      if (pass == ConvPass::kBackwardData && conv->inputs()[0] == input) continue;
      const ConvProblem problem{conv->geometry(), as_image(conv->inputs()[0]->shape), pass};
      if (std::find(problems.begin(), problems.end(), problem) == problems.end()) {
        problems.push_back(problem);
      }
    }
  }
  return problems;
}

/// The same for one and for four replicas of every training, each under the first name that has it.
const std::vector<std::pair<std::string, ConvProblem>>& all_problems() {
  static const auto all = [] {
    std::vector<std::pair<std::string, ConvProblem>> found;
    for (const Training& training : trainings()) {
      for (const int replicas : {1, 4}) {
        const std::int64_t images =
            chunk_sizes(training.config.global_batch(replicas), replicas)[0];
        for (const ConvProblem& problem : problems_of(training.config, images)) {
          const auto same = std::find_if(found.begin(), found.end(), [&](const auto& other) {
            return other.second == problem;
          });
          if (same == found.end()) found.emplace_back(training.name, problem);
        }
      }
    }
    return found;
  }();
  return all;
}

// --- what cuDNN says of them

std::vector<CudnnDescriptor> list_engines(const ConvProblem& problem, WeightOrder order,
                                          const CudnnTarget& target, bool fallback) {
  constexpr std::size_t kTried = 6;  // as many as EngineSearch tries
  auto engines = find_engines(problem, order, target, fallback);
  if (engines.size() > kTried) engines.resize(kTried);
  return engines;
}

/// Whether cuDNN itself calls the engine deterministic.
bool is_deterministic(const CudnnDescriptor& config) {
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  std::int64_t count = 0;
  REQUIRE(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                   &raw) == CUDNN_STATUS_SUCCESS);
  REQUIRE(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                   &count, notes.data()) == CUDNN_STATUS_SUCCESS);
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

/// What becomes of a problem, as EngineSearch goes about it.
struct Outcome {
  bool has_engine = false;     // with no more workspace than it may have
  bool from_fallback = false;  // the engine is one of the last resort
  bool rejected = false;       // the most promising one asks for too much
  std::size_t workspace = 0;   // of the most promising one
};

Outcome plan(const ConvProblem& problem, const CudnnTarget& target, std::size_t most_workspace) {
  Outcome outcome;
  bool first = true;
  for (const bool fallback : {false, true}) {
    for (const WeightOrder order : {WeightOrder::kOutTapsIn, WeightOrder::kOutInTaps}) {
      for (CudnnDescriptor& engine : list_engines(problem, order, target, fallback)) {
        CHECK(is_deterministic(engine));
        std::string reason;
        const CudnnPlan made = make_plan(std::move(engine), reason);
        if (made.plan.get() == nullptr) continue;
        const bool fits = made.workspace <= most_workspace;
        if (first) {
          outcome.workspace = made.workspace;
          outcome.rejected = !fits;
        }
        first = false;
        if (!fits) continue;
        outcome.has_engine = true;
        outcome.from_fallback = fallback;
        return outcome;
      }
    }
  }
  return outcome;
}

/// Bytes that an engine may take which copies input and output to a layout of its own and
/// transforms the weights, of 3x3 to 6x6 (Winograd with tiles of 4x4).
std::size_t bytes_of_copies(const ConvProblem& problem) {
  const std::int64_t elements = problem.input.elements() +
                                problem.geometry.output_shape(problem.input).elements() +
                                4 * problem.geometry.weight_elements();
  return static_cast<std::size_t>(elements) * size_of(problem.dtype);
}

TEST_CASE("every convolution of the shipped networks has an engine on four GPUs") {
  REQUIRE(all_problems().size() > 500);
  for (const Gpu& gpu : kGpus) {
    const CudnnDescriptor properties = gpu.properties();
    if (properties.get() == nullptr) return;
    for (const Precision& precision : precisions_of(gpu)) {
      int rejected = 0, from_fallback = 0;
      for (const auto& [training, in_fp32] : all_problems()) {
        ConvProblem problem = in_fp32;
        problem.dtype = precision.dtype;
        problem.tf32 = precision.dtype == DType::kFloat32 && precision.tf32;
        const std::string what = concat(gpu.name, ", ", training, ", ", to_string(problem.pass),
                                        " of ", to_string(problem.geometry), ", input ",
                                        to_string(problem.input), " in ", to_string(precision));
        INFO(what);
        const Outcome outcome = plan(problem, {nullptr, &properties}, most_workspace(gpu.bytes()));
        CHECK(outcome.has_engine);
        rejected += outcome.rejected ? 1 : 0;
        from_fallback += outcome.from_fallback ? 1 : 0;
        if (precision.dtype == DType::kFloat32 && (precision.exact() || gpu.version < 800)) {
          // Without tensor cores cuDNN prefers engines that copy: on a small GPU those of large
          // tensors are too greedy.
          if (outcome.rejected) CHECK(outcome.workspace <= bytes_of_copies(problem));
          if (gpu.mebibytes >= 24000) CHECK_FALSE(outcome.rejected);
        } else {
          CHECK_FALSE(outcome.rejected);
          CHECK_FALSE(outcome.from_fallback);
        }
      }
      MESSAGE(concat(gpu.name, ", ", to_string(precision), ", ", all_problems().size(),
                     " passes: the first engine asks for too much in ", rejected, ", ",
                     from_fallback, " have one of the last resort"));
    }
  }
}

TEST_CASE("cuDNN lists the same engines every time") {
  const CudnnDescriptor properties = kGpus[0].properties();
  if (properties.get() == nullptr) return;
  const auto numbers = [&](const ConvProblem& problem) {
    std::vector<std::pair<std::int64_t, std::size_t>> all;
    for (CudnnDescriptor& engine :
         list_engines(problem, WeightOrder::kOutTapsIn, {nullptr, &properties}, false)) {
      std::string reason;
      const CudnnPlan made = make_plan(std::move(engine), reason);
      all.emplace_back(made.engine_number, made.workspace);
    }
    return all;
  };
  for (std::size_t i = 0; i < all_problems().size(); i += 25) {
    CHECK(numbers(all_problems()[i].second) == numbers(all_problems()[i].second));
  }
}

// What the cases above must be able to see.
TEST_CASE("a workspace that is too small, and a type that a GPU does not have, are seen") {
  const CudnnDescriptor turing = kGpus[3].properties();
  if (turing.get() == nullptr) return;
  const ConvGeometry geometry{64, 64, 3, 3, 1, 1, 1, 1};
  ConvProblem problem{geometry, {8, 360, 480, 64}, ConvPass::kBackwardData};
  const Outcome small = plan(problem, {nullptr, &turing}, std::size_t{1} << 20);
  CHECK(small.rejected);
  CHECK(small.workspace > std::size_t{600} << 20);
  CHECK_FALSE(plan(problem, {nullptr, &turing}, std::size_t{1} << 30).rejected);
  problem.dtype = DType::kBFloat16;
  CHECK_FALSE(plan(problem, {nullptr, &turing}, std::size_t{1} << 30).has_engine);
}

}  // namespace
}  // namespace lockstep::gpu
