#pragma once
// A network that is only run, in evaluation mode: BatchNorm by its running statistics, no losses,
// no backward pass. Validation and Predictor stand on it; precise statistics, which need training
// mode, run the network of training (TrainStep::forward).

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/model.h"

namespace lockstep {

/// Which model is run, and which of its outputs.
struct ForwardOptions {
  Model model = nullptr;
  NormLayer norm = {};
  std::string output = "out";
  DType activations = DType::kFloat32;
  /// The rank's end of its group, so that it leaves when the group fails.
  std::reference_wrapper<Communicator> communicator = lone_rank();
};

/// Used by one thread, that of its backend. Memory is planned for the shapes that come: a batch of
/// the shape before, or with fewer images, allocates nothing.
class Forward {
 public:
  /// Backend and store outlive the object. The store may hold parameters of another network of the
  /// model, which are shared then.
  Forward(ForwardOptions options, Backend& backend, ParameterStore& store);

  /// Sets the network to inputs [input]; declares the store's parameters at the first call. Returns
  /// whether memory was planned anew. Throws Error naming the layer where the shape does not fit.
  bool prepare(const Shape& input);
  /// Gives the network's memory back; the next `prepare` plans it anew. Parameters stay.
  void release();
  /// Brings `images` [as prepared] to the device and runs the network. On a GPU it is only issued.
  /// The output's logits, on the device, are good until the next call.
  const Tensor& run(const float* images);
  /// The same on the host, in fp32; waits for the device. Good until the next call.
  std::span<const float> read_logits();

  /// REQUIRES: prepared.
  Network& network() const { return *network_; }

 private:
  void plan(const Shape& input);
  const Tensor& output() const { return network_->output(output_); }

  const ForwardOptions options_;
  Backend& backend_;
  ParameterStore& store_;
  std::unique_ptr<Network> network_;  // of the shape prepared last
  std::size_t output_ = 0;
  // Dense memory in fp32 beside an input or output that is not; of an output once it is read.
  Storage images_, staged_logits_;
  std::vector<float> logits_;
};

}  // namespace lockstep
