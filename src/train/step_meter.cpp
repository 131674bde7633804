#include "train/step_meter.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/percentiles.h"
#include "lockstep/core/check.h"
#include "run/environment.h"

namespace lockstep {

RankTotals::RankTotals(std::span<const Device> devices) {
  for (const Device& device : devices) {
    sums_.push_back({.rank = static_cast<int>(sums_.size()), .device = to_string(device)});
  }
}

void RankTotals::add(std::span<const RankStep> step) {
  LOCKSTEP_CHECK(step.size() == sums_.size(), "a step of ", step.size(), " ranks in a run of ",
                 sums_.size());
  for (std::size_t rank = 0; rank < step.size(); ++rank) {
    RankReport& sum = sums_[rank];
    sum.loss += step[rank].loss;
    sum.times.compute += step[rank].times.compute;
    sum.times.batch_norm_wait += step[rank].times.batch_norm_wait;
    sum.times.gradient_exchange += step[rank].times.gradient_exchange;
    sum.memory_bytes = step[rank].memory_bytes;
    sum.peak_memory_bytes = step[rank].peak_memory_bytes;
  }
  ++steps_;
}

void RankTotals::clear() {
  for (RankReport& sum : sums_) sum = {.rank = sum.rank, .device = std::move(sum.device)};
  steps_ = 0;
}

std::vector<RankReport> RankTotals::reports() const {
  if (steps_ == 0) return {};
  std::vector<RankReport> means = sums_;
  const auto steps = static_cast<double>(steps_);
  for (RankReport& mean : means) {
    mean.loss /= steps;
    mean.times.compute /= steps;
    mean.times.batch_norm_wait /= steps;
    mean.times.gradient_exchange /= steps;
  }
  return means;
}

// A report covers the steps since the last one, also when the run was cut in between.
StepMeter::StepMeter(std::span<const Device> devices, const TrainingState& from,
                     std::int64_t max_iters, std::int64_t log_every)
    : max_iters_(max_iters),
      begun_(from.iteration),
      done_(from.iteration),
      reported_(from.iteration / log_every * log_every),
      warm_up_(std::min<std::int64_t>(5, (max_iters - from.iteration) / 4)),
      losses_(from.losses),
      lap_ranks_(devices),
      all_ranks_(devices) {
  losses_.reserve(static_cast<std::size_t>(max_iters));
  seconds_.reserve(static_cast<std::size_t>(max_iters));
}

void StepMeter::start_clock() {
  if (begun_ == done_) lap_ = Clock::now();
}

void StepMeter::begin(double lr, std::int64_t epoch, double data_seconds) {
  ++begun_;
  lr_ = lr;
  epoch_ = epoch;
  seconds_.push_back({0, data_seconds, {}});
}

void StepMeter::finish(const StepResult& result) {
  StepSeconds& seconds = *(seconds_.end() - (begun_ - done_));
  ++done_;
  losses_.push_back(result.loss);
  grad_norm_ = static_cast<float>(result.grad_norm);
  loss_scale_ = result.loss_scale;
  const Clock::time_point now = Clock::now();
  seconds.step = std::chrono::duration<double>(now - lap_).count();
  seconds.replicas = result.times;
  lap_ranks_.add(result.ranks);
  if (std::distance(seconds_.data(), &seconds) >= warm_up_) all_ranks_.add(result.ranks);
  lap_ = now;
}

StepReport StepMeter::report() {
  StepReport report{.iteration = done_, .max_iters = max_iters_, .epoch = epoch_};
  const auto steps = done_ - reported_;
  report.loss =
      std::accumulate(losses_.end() - steps, losses_.end(), 0.0) / static_cast<double>(steps);
  reported_ = done_;
  const auto timed = std::min<std::int64_t>(steps, static_cast<std::int64_t>(seconds_.size()));
  const auto share = 1.0 / static_cast<double>(timed);
  for (auto step = seconds_.end() - timed; step != seconds_.end(); ++step) {
    report.time += step->step * share;
    report.data_time += step->data * share;
    report.compute += step->replicas.compute * share;
    report.batch_norm_wait += step->replicas.batch_norm_wait * share;
    report.exchange += step->replicas.gradient_exchange * share;
  }
  report.lr = lr_;
  report.grad_norm = static_cast<double>(grad_norm_);
  report.loss_scale = loss_scale_;
  report.eta = report.time * static_cast<double>(max_iters_ - done_);
  report.memory = peak_memory_mb();
  return report;
}

std::vector<RankReport> StepMeter::report_ranks() {
  std::vector<RankReport> reports = lap_ranks_.reports();
  lap_ranks_.clear();
  return reports;
}

MeanTimes StepMeter::mean_times() const {
  const auto skipped = std::min(static_cast<std::size_t>(warm_up_), seconds_.size() / 4);
  const auto count = static_cast<double>(seconds_.size() - skipped);
  MeanTimes means;
  if (seconds_.empty()) return means;
  std::vector<double> steps;
  for (std::size_t i = skipped; i < seconds_.size(); ++i) {
    const StepSeconds& step = seconds_[i];
    means.step += step.step / count;
    means.data += step.data / count;
    means.compute += step.replicas.compute / count;
    means.batch_norm_wait += step.replicas.batch_norm_wait / count;
    means.gradient_exchange += step.replicas.gradient_exchange / count;
    steps.push_back(step.step);
  }
  means.median_step = percentiles(steps).median;
  return means;
}

double StepMeter::tail_loss() const {
  if (losses_.empty()) return 0;
  const auto count =
      std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(losses_.size() / 10), 1, 100);
  return std::accumulate(losses_.end() - count, losses_.end(), 0.0) / static_cast<double>(count);
}

}  // namespace lockstep
