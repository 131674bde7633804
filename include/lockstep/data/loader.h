#pragma once
// Batches, decoded and augmented on background threads ahead of the step. The order and every
// augmentation are functions of (seed, epoch, sample, crop) only: neither the number of workers nor
// of devices changes a batch.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

struct LoaderOptions {
  std::int64_t batch = 8;  // samples of a global batch
  bool drop_last = true;   // leave out an epoch's last batch where it would be smaller
  std::uint64_t seed = 0;  // of order and augmentation
  int prefetch = 4;        // batches decoded ahead
  int divisor = 1;         // images are padded to multiples of it, as ValLoader::load pads them
  std::int64_t first_batch = 0;  // position to start from (a resumed run), counted over all epochs
  /// Returns which places of a batch of `count` samples are decoded, in rising order: the memory of
  /// the others is there and means nothing. Null: all are. Thread-safe.
  std::function<std::vector<std::int64_t>(std::int64_t count)> own_places = nullptr;
};

/// Endless training batches, in order. Used by one thread (the trainer's); owns its workers and
/// joins them.
class TrainLoader {
 public:
  /// Throws ConfigError when drop_last leaves no batch or images differ in size and neither resize
  /// nor crop makes them equal.
  TrainLoader(const DataOptions& data, const LoaderOptions& options);
  ~TrainLoader();

  /// DataOptions::crops_per_image times the samples of the data set.
  std::int64_t samples_per_epoch() const;
  /// Batches of an epoch: the floor of samples over batch size, or without drop_last the ceiling.
  std::int64_t batches_per_epoch() const;
  /// The size of the images of every batch, in pixels.
  Size size() const;
  /// Their size without what is padded for LoaderOptions::divisor.
  Size unpadded_size() const;
  /// What the batches are made of.
  const Dataset& dataset() const;
  /// The next batch; blocks until it is decoded. The batch stays valid until the next call (its
  /// buffers are then reused). Throws what decoding threw.
  const Batch& next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The validation split in order, resized if the configuration says so, never augmented, never
/// repeated. Sizes may differ from image to image.
class ValLoader {
 public:
  /// `seed`: of generated images and of `exposure`. Throws as make_dataset.
  ValLoader(const DataOptions& data, std::uint64_t seed);
  ~ValLoader();
  /// How many images there are.
  std::int64_t size() const;
  /// What the batches are made of.
  const Dataset& dataset() const;
  /// What the labels are of.
  Task task() const;
  /// Whether all images are of one size. Reads their headers.
  bool one_size() const;
  /// The image of the most pixels, as `load` gives it by itself. Reads all headers.
  std::int64_t largest(int divisor) const;
  /// Images [first, first + count), which are of one size, as a batch: normalised, their right and
  /// bottom edges padded to multiples of `divisor` with zeros (the mean colour) and
  /// `ignored_label`. Thread-safe. Throws DataError for a label that is neither a class nor
  /// ignored.
  Batch load(std::int64_t first, std::int64_t count, int divisor) const;
  /// The same of images from anywhere in the split, in the order of `indices`.
  Batch load(std::span<const std::int64_t> indices, int divisor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct DistributedSamplerOptions {
  int ranks = 1;
  int rank = 0;
  bool shuffle = true;
  bool drop_last = false;  // leave out the last samples instead of repeating the first
  std::uint64_t seed = 0;
};

/// Which samples a rank of several gets, as torch.utils.data.DistributedSampler deals them out: for
/// training loops of one's own, with a loader per rank. (TrainLoader makes global batches instead.)
/// All ranks get equally many samples: rank r those at places r, r + ranks, r + 2*ranks, ... of the
/// epoch's order. Where the samples do not divide evenly the order is continued from its start,
/// over and over if it must be, or cut with `drop_last`. The order is a function of seed and epoch;
/// it is not that of PyTorch's generator. Safe from any thread.
class DistributedSampler {
 public:
  /// Throws Error unless 0 <= rank < ranks and there is at least one sample.
  DistributedSampler(std::int64_t samples, const DistributedSamplerOptions& options);

  /// Samples of a rank in an epoch: ceil(samples / ranks), or with drop_last the floor.
  std::int64_t size() const;
  /// The rank's samples in their order.
  std::vector<std::int64_t> indices(std::int64_t epoch) const;

 private:
  const std::int64_t samples_;
  const DistributedSamplerOptions options_;
};

}  // namespace lockstep
