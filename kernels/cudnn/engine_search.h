#pragma once
// Which of cuDNN's engines computes a pass of a convolution: the fastest of its deterministic ones,
// found by timing a few, and kept in a file. All replicas whose GPUs are of one model take the same
// one, in this process and in later ones on this machine, and so compute the same bits.

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "backend/conv/autotuner.h"
#include "kernels/cudnn/cudnn_graph.h"
#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Bytes of workspace that an engine may ask for on a GPU with this much memory: a sixteenth, and
/// at least 512 MiB. Engines for fp32 without tensor cores copy both tensors to their own layout.
constexpr std::size_t most_workspace(std::size_t device_bytes) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const std::size_t share = device_bytes / 16 / kMiB * kMiB;
  return share > 512 * kMiB ? share : 512 * kMiB;
}

/// A plan with what was found out about it.
struct FoundPlan {
  std::string name;  // of its engine
  WeightOrder order = WeightOrder::kOutInTaps;
  CudnnPlan cudnn = {};
  double milliseconds = 0;  // when it was chosen; 0: it was not timed
};

/// Bytes of the weights in the problem's type, padded to a piece of scratch memory.
std::size_t weight_bytes(const ConvProblem& problem);
/// The same of a tensor.
std::size_t bytes_of(const Shape& shape, DType dtype);
/// `bytes` rounded up to the alignment of a piece of scratch memory.
std::size_t padded(std::size_t bytes);
/// "the forward pass of a 3x3 convolution ..., input [8, 16, 180, 240] in fp32 with TF32".
std::string describe(const ConvProblem& problem);

/// Owned by the convolutions of a backend, used by its thread with its device current. What it
/// is made of outlives it.
class EngineSearch {
 public:
  using Allocate = std::function<Storage(std::size_t bytes)>;  // as Backend::allocate

  /// `choices`: file of an Autotuner.
  EngineSearch(int ordinal, cudnnHandle_t handle, const Context& context, Allocate allocate,
               std::filesystem::path choices);

  /// `timed`: whether the clock may decide where no earlier process has; else cuDNN's own order
  /// does. Throws Error where no engine takes the problem.
  FoundPlan find(const ConvProblem& problem, bool timed);

  /// A line for every problem some of whose engines asked for more workspace than they may have.
  const std::vector<std::string>& rejections() const { return rejections_; }

 private:
  /// Memory for trying engines; null tensors where there is none.
  struct Operands {
    std::array<Storage, 3> storage;
    std::array<void*, 3> tensors{};
  };

  CudnnTarget target() const { return {handle_, nullptr}; }
  Operands make_operands(const ConvProblem& problem);
  /// What has come of the engines so far.
  struct Trials {
    bool works = false, enough = false;
    std::string reason = "none is deterministic";  // why the last one was not taken
    int rejected = 0;                              // for their workspace
    std::size_t least_rejected = std::numeric_limits<std::size_t>::max();
  };
  /// Whether no other need be looked at. Throws Error where the engine fails.
  using Attempt = std::function<bool(FoundPlan& plan)>;
  /// Of the most promising engines, until there is enough. Throws Error where none works.
  void for_each_engine(const ConvProblem& problem, const Attempt& attempt);
  void try_list(const ConvProblem& problem, WeightOrder order, bool fallback,
                const Attempt& attempt, Trials& trials);
  FoundPlan first_engine(const ConvProblem& problem, bool tried);
  Measurement time_engines(const ConvProblem& problem);
  /// With a null plan when the engine is not there or does not take the problem; `reason` says why.
  FoundPlan make_chosen(const ConvProblem& problem, const EngineChoice& choice,
                        std::string& reason);
  /// `found`: its plan.
  bool can_run(const ConvProblem& problem, const EngineChoice& choice, FoundPlan& found);
  void run(const CudnnPlan& plan, const CudnnDescriptor& pack);
  void run_once(const CudnnPlan& plan, const Operands& operands);
  float milliseconds(const CudnnPlan& plan, const Operands& operands, float least);
  void note_rejections(const ConvProblem& problem, const Trials& trials);

  const int ordinal_;
  const cudnnHandle_t handle_;
  const Context& context_;
  const Allocate allocate_;
  const std::filesystem::path choices_;
  const std::string model_;  // of the GPU and the library
  const std::size_t most_workspace_;
  std::vector<std::string> rejections_;
};

}  // namespace lockstep::gpu
