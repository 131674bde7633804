#include "train/inference/inference_device.h"

#include <utility>

namespace lockstep {
namespace {

PredictorOptions predictor_options(const Config& config, const Device& device, int threads) {
  return {.device = device, .threads = threads, .norm = NormLayer(config.bn)};
}

}  // namespace

InferenceDevice::InferenceDevice(const TrainedModel& model, const Device& device, int threads,
                                 std::size_t scales)
    : model_(model),
      options_(predictor_options(model.config, device, threads)),
      scales_(scales),
      thread_([this] { serve(); }) {}

InferenceDevice::~InferenceDevice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::vector<Answer> InferenceDevice::answer(std::span<const View> views, bool logits) {
  Job job([this, views, logits](Networks& networks) {
    std::vector<Answer> answers;
    for (const View& view : views) answers.push_back(ask(view, logits, networks));
    return answers;
  });
  std::future<std::vector<Answer>> answers = job.get_future();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return answers.get();
}

// Networks are made, used and destroyed on this thread: a backend belongs to one.
void InferenceDevice::serve() {
  Networks networks(scales_);
  for (Job job; next(job);) job(networks);
}

bool InferenceDevice::next(Job& job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
  if (jobs_.empty()) return false;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  return true;
}

Predictor& InferenceDevice::network_of(std::size_t scale, Networks& networks) const {
  std::unique_ptr<Predictor>& network = networks[scale];
  if (network == nullptr) {
    network = std::make_unique<Predictor>(model_.architecture.model, model_.weights, options_);
  }
  return *network;
}

Answer InferenceDevice::ask(const View& view, bool logits, Networks& networks) const {
  const Prediction said = network_of(view.scale, networks).predict(view.images, view.shape);
  Answer answer{said.shape, {}, {said.classes.begin(), said.classes.end()}};
  if (logits) answer.logits.assign(said.logits.begin(), said.logits.end());
  return answer;
}

}  // namespace lockstep
