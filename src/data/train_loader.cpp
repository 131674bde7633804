#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/start_thread.h"
#include "data/augment.h"
#include "data/batch_plan.h"
#include "data/sample_store.h"
#include "data/sampler.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

void check_places(const std::vector<std::int64_t>& places, std::int64_t count) {
  const bool inside = places.empty() || (places.front() >= 0 && places.back() < count);
  LOCKSTEP_CHECK(inside && std::is_sorted(places.begin(), places.end()),
                 "LoaderOptions::own_places must give rising places of a batch of ", count,
                 ", from 0 to ", count - 1);
}

// An entry of the ring: one batch that is being filled, waits for its turn, or is the caller's.
struct Slot {
  Batch batch;
  std::vector<std::int64_t> crops;   // [position] which of its sample
  std::vector<std::int64_t> places;  // of the batch, that are decoded
  std::int64_t missing = 0;          // samples not decoded yet
  std::int64_t failed_position = 0;
  std::exception_ptr failure;
};

// One sample to decode.
struct Ticket {
  Slot* slot = nullptr;
  std::int64_t position = 0;  // in the batch
  std::int64_t sample = 0, crop = 0;
};

// What one thread needs to fill a place in a batch.
struct Decoder {
  SampleScratch scratch;
  Augmenter augmenter;
  std::vector<std::int64_t> histogram;  // [classes]
};

}  // namespace

// Tickets are handed out in the order of training, so a worker's only decision is which thread
// decodes a sample. The mutex guards everything below it but the contents of batches: those belong
// to the workers that hold tickets, then, when nothing is missing, to the caller.
struct TrainLoader::Impl {
  Impl(const DataOptions& data_options, const LoaderOptions& loader_options);

  const Batch& next();
  const Dataset& dataset() const { return store_.dataset(); }

  std::int64_t samples_per_epoch = 0, batches_per_epoch = 0;
  Size unpadded_size, size;

 private:
  void work(const std::stop_token& stop, Decoder& decoder);
  bool ticket_ready() const {
    return next_batch_ < held_ + static_cast<std::int64_t>(ring_.size());
  }
  std::optional<Ticket> take_ticket();
  void open_batch(Slot& slot);
  void choose_samples(Slot& slot);
  void decode(const Ticket& ticket, Decoder& decoder);
  void fill(const Ticket& ticket, Decoder& decoder) const;
  std::size_t labels_per_sample() const {
    return store_.task() == Task::kClassification ? 1 : pixels_per_sample();
  }
  std::size_t channels() const { return static_cast<std::size_t>(data_.channels); }
  std::size_t pixels_per_sample() const {
    return static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width);
  }
  Slot& slot_of(std::int64_t batch) {
    return ring_[static_cast<std::size_t>(batch) % ring_.size()];
  }

  const DataOptions data_;
  const LoaderOptions options_;
  const SampleStore store_;
  const std::size_t classes_;

  std::mutex mutex_;
  std::condition_variable_any free_, filled_;  // an entry became free; a batch became complete
  std::vector<Slot> ring_;
  std::int64_t held_;        // the caller's batch, or the one it will get first
  std::int64_t position_;    // the batch that next() returns next
  std::int64_t next_batch_;  // of the next ticket, which is for the Slot's `places[next_place_]`
  std::size_t next_place_ = 0;
  std::exception_ptr failure_;       // of a worker, outside any batch
  std::vector<std::int64_t> order_;  // of epoch order_epoch_
  std::int64_t order_epoch_ = -1;
  std::vector<Decoder> decoders_;      // [worker], or the caller's
  std::vector<std::jthread> workers_;  // last: stopped and joined before anything they use goes
};

TrainLoader::Impl::Impl(const DataOptions& data_options, const LoaderOptions& loader_options)
    : data_(data_options),
      options_(loader_options),
      store_(data_options, Split::kTrain, loader_options.seed),
      classes_(static_cast<std::size_t>(class_count(data_options))),
      ring_(static_cast<std::size_t>(
          data_options.workers > 0 ? std::max(loader_options.prefetch, 1) + 1 : 1)),
      held_(loader_options.first_batch),
      position_(loader_options.first_batch),
      next_batch_(loader_options.first_batch) {
  LOCKSTEP_CHECK(options_.batch > 0 && options_.first_batch >= 0 && options_.prefetch >= 0,
                 "a batch of ", options_.batch, " from ", options_.first_batch, ", ",
                 options_.prefetch, " ahead: expected at least 1, 0 and 0");
  const BatchPlan plan =
      plan_batches(data_, store_.dataset(), options_.batch, options_.drop_last, options_.divisor);
  samples_per_epoch = plan.samples_per_epoch;
  batches_per_epoch = plan.batches_per_epoch;
  unpadded_size = plan.unpadded_size;
  size = plan.size;
  // Before any thread starts: a vector that grows would move what a thread uses.
  for (int i = 0; i < std::max(data_.workers, 1); ++i) {
    decoders_.push_back({{}, Augmenter(data_, options_.seed, size), {}});
  }
  for (int i = 0; i < data_.workers; ++i) {
    Decoder& decoder = decoders_[static_cast<std::size_t>(i)];
    workers_.push_back(start_thread<std::jthread>(
        "to decode images",
        [this, &decoder](const std::stop_token& stop) { work(stop, decoder); }));
  }
}

const Batch& TrainLoader::Impl::next() {
  std::unique_lock lock(mutex_);
  held_ = position_++;
  Slot& slot = slot_of(held_);
  if (workers_.empty()) {
    do {
      const std::optional<Ticket> ticket = take_ticket();
      if (!ticket) continue;
      lock.unlock();
      decode(*ticket, decoders_.front());
      lock.lock();
    } while (slot.missing > 0);
  } else {
    free_.notify_all();
    filled_.wait(lock, [&] { return failure_ || (next_batch_ > held_ && slot.missing == 0); });
    if (failure_) std::rethrow_exception(failure_);
  }
  if (slot.failure) std::rethrow_exception(slot.failure);
  return slot.batch;
}

void TrainLoader::Impl::work(const std::stop_token& stop, Decoder& decoder) {
  while (true) {
    std::optional<Ticket> ticket;
    {
      std::unique_lock lock(mutex_);
      if (!free_.wait(lock, stop, [&] { return ticket_ready(); }) || stop.stop_requested()) return;
      try {
        ticket = take_ticket();
      } catch (...) {
        failure_ = std::current_exception();
        filled_.notify_all();
        return;
      }
    }
    if (ticket) decode(*ticket, decoder);
  }
}

// None where the next batch has no place to decode; it is then complete, and the one behind it is
// next. REQUIRES: mutex_ held, ticket_ready().
std::optional<Ticket> TrainLoader::Impl::take_ticket() {
  Slot& slot = slot_of(next_batch_);
  if (next_place_ == 0) open_batch(slot);
  std::optional<Ticket> ticket;
  if (!slot.places.empty()) {
    const std::int64_t place = slot.places[next_place_++];
    const auto at = static_cast<std::size_t>(place);
    ticket = Ticket{&slot, place, slot.batch.samples[at], slot.crops[at]};
  }
  if (next_place_ == slot.places.size()) {
    next_place_ = 0;
    ++next_batch_;
    if (!ticket) filled_.notify_all();
  }
  return ticket;
}

// An epoch's order is of its crops: first those that are their images' first, and so on.
void TrainLoader::Impl::choose_samples(Slot& slot) {
  Batch& batch = slot.batch;
  batch.epoch = next_batch_ / batches_per_epoch;
  if (batch.epoch != order_epoch_) {
    epoch_order(samples_per_epoch, data_.shuffle, options_.seed, batch.epoch, order_);
    order_epoch_ = batch.epoch;
  }
  const std::int64_t begin = next_batch_ % batches_per_epoch * options_.batch;
  const std::int64_t end = std::min(begin + options_.batch, samples_per_epoch);
  batch.samples.clear();
  slot.crops.clear();
  for (auto number = order_.begin() + begin; number != order_.begin() + end; ++number) {
    batch.samples.push_back(*number % store_.size());
    slot.crops.push_back(*number / store_.size());
  }
}

// Sizes the buffers of batch `next_batch_` and writes down its samples.
void TrainLoader::Impl::open_batch(Slot& slot) {
  choose_samples(slot);
  Batch& batch = slot.batch;
  const std::int64_t count = batch.count();
  batch.images.resize(static_cast<std::size_t>(count) * pixels_per_sample() * channels());
  batch.labels.resize(static_cast<std::size_t>(count) * labels_per_sample());
  batch.size = size;
  batch.class_pixels.assign(classes_, 0);
  batch.own_places_only = options_.own_places != nullptr;
  if (options_.own_places) {
    slot.places = options_.own_places(count);
    check_places(slot.places, count);
  } else {
    slot.places.resize(static_cast<std::size_t>(count));
    std::iota(slot.places.begin(), slot.places.end(), 0);
  }
  slot.missing = static_cast<std::int64_t>(slot.places.size());
  slot.failure = nullptr;
}

void TrainLoader::Impl::decode(const Ticket& ticket, Decoder& decoder) {
  decoder.histogram.assign(classes_, 0);
  std::exception_ptr failure;
  try {
    fill(ticket, decoder);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  Slot& slot = *ticket.slot;
  for (std::size_t c = 0; c < classes_; ++c) slot.batch.class_pixels[c] += decoder.histogram[c];
  // Of several failures the first in the batch is told, whichever thread was faster.
  if (failure && (!slot.failure || ticket.position < slot.failed_position)) {
    slot.failure = failure;
    slot.failed_position = ticket.position;
  }
  if (--slot.missing == 0) filled_.notify_all();
}

void TrainLoader::Impl::fill(const Ticket& ticket, Decoder& decoder) const {
  Batch& batch = ticket.slot->batch;
  const auto position = static_cast<std::size_t>(ticket.position);
  float* image = batch.images.data() + position * pixels_per_sample() * channels();
  Label* labels = batch.labels.data() + position * labels_per_sample();
  const std::int64_t crop = crop_index(ticket.sample, ticket.crop);
  const auto needed = [&](Size whole) {
    return decoder.augmenter.part_needed(whole, crop, batch.epoch);
  };
  const SamplePart part = store_.fetch_part(ticket.sample, needed, decoder.scratch);
  decoder.augmenter.apply(part, crop, batch.epoch, image, labels);
  store_.count_labels(ticket.sample, {labels, labels_per_sample()}, decoder.histogram);
}

TrainLoader::TrainLoader(const DataOptions& data, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(data, options)) {}

TrainLoader::~TrainLoader() = default;

std::int64_t TrainLoader::samples_per_epoch() const { return impl_->samples_per_epoch; }

std::int64_t TrainLoader::batches_per_epoch() const { return impl_->batches_per_epoch; }

Size TrainLoader::size() const { return impl_->size; }

Size TrainLoader::unpadded_size() const { return impl_->unpadded_size; }

const Dataset& TrainLoader::dataset() const { return impl_->dataset(); }

const Batch& TrainLoader::next() { return impl_->next(); }

}  // namespace lockstep
