#pragma once
// A device that answers: its thread has the networks, and others wait for their turn.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/nn/predictor.h"
#include "run/trained_model.h"
#include "train/inference/views.h"

namespace lockstep {

/// What the network says of a view.
struct Answer {
  Shape shape = {};                   // [1 or 2, H, W, classes] or [1 or 2, classes]
  std::vector<float> logits;          // [shape]; empty where only classes were asked for
  std::vector<std::int32_t> classes;  // [shape without classes]: the first of the largest
};

class InferenceDevice {
 public:
  /// `threads`: of a CPU device. `scales`: how many TestTimeAugmentation has; each has a network of
  /// its own, so that images of one size plan none again. `model` outlives the device.
  InferenceDevice(const TrainedModel& model, const Device& device, int threads, std::size_t scales);
  ~InferenceDevice();

  /// Safe from several threads, which are served in turn. Throws what the network throws.
  std::vector<Answer> answer(std::span<const View> views, bool logits);

 private:
  using Networks = std::vector<std::unique_ptr<Predictor>>;
  using Job = std::packaged_task<std::vector<Answer>(Networks& networks)>;
  void serve();
  bool next(Job& job);
  Predictor& network_of(std::size_t scale, Networks& networks) const;
  Answer ask(const View& view, bool logits, Networks& networks) const;

  const TrainedModel& model_;
  const PredictorOptions options_;
  const std::size_t scales_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool ends_ = false;     // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep
