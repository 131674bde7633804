#pragma once
// A model on some devices whose passes can be looked at: the input, the parameters and the gradient
// of the outputs are given, the outputs and all gradients come back. Samples are spread over the
// devices as DataParallel spreads them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checks/measure.h"
#include "lockstep/nn/model.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica_group.h"

namespace lockstep {

struct ProbeOptions {
  std::vector<Device> devices = {};
  Model model = nullptr;  // with one output
  NormLayer norm = {};
  Shape input = {};  // of the largest batch that will come, over all devices
  TransportKind transport = TransportKind::kAuto;
  bool training = true;  // false: as in an evaluation, no gradients
};

/// What a pass computes. The samples' in their order, whatever device they were on.
struct ProbePass {
  Floats output, input_grad;
  NamedDoubles grads;  // of parameters: the sum over the devices
};

class Probe {
 public:
  explicit Probe(ProbeOptions options);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// Normal ones; gamma in 0.5 to 1.5, beta at most 0.2 in size.
  NamedFloats random_parameters() const;
  void set_parameters(const NamedFloats& values);

  /// The running statistics of a rank by PyTorch's names: "bn.running_mean", "bn.running_var".
  NamedFloats statistics(int rank = 0);
  /// Sets the running statistics of all ranks.
  void set_statistics(const NamedFloats& values);

  /// The output for `input`, [n, ...] for any n up to the largest.
  Floats forward(const Floats& input);
  /// With the gradient of the output.
  ProbePass step(const Floats& input, const Floats& grad_output);

  const SyncGroup& sync_group() const { return *group_; }

 private:
  struct Rank {
    std::unique_ptr<Backend> backend;
    ParameterStore store;
    std::unique_ptr<Network> network;
    Floats output, input_grad;
    NamedFloats grads;
  };

  void run(const Floats& input, const Floats* grad_output);
  void run_rank(int rank, std::int64_t begin, std::int64_t count, const Floats& input,
                const Floats* grad_output);

  const ProbeOptions options_;
  std::unique_ptr<SyncGroup> group_;
  std::unique_ptr<std::vector<Rank>> ranks_;
  ReplicaGroup threads_;  // last: its threads use the members above
};

}  // namespace lockstep
