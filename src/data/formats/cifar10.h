#pragma once
// Layout cifar10: the "binary version" of CIFAR-10 (Krizhevsky 2009) as it is downloaded and
// unpacked: data_batch_1.bin to data_batch_5.bin and test_batch.bin in `root`, or in its folder
// cifar-10-batches-bin. A record is a byte, the class, and 3072 of the image: 32x32, red, then
// green, then blue.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

const std::vector<std::string>& cifar10_class_names();

/// Split "train": the five files; "val" or "test": test_batch.bin. Reads the sizes of the files at
/// once and records when they are asked for. Throws DataError for files that are missing or not
/// whole, ConfigError for another split or another number of classes.
std::unique_ptr<Dataset> make_cifar10(const DataOptions& options, Split split, std::uint64_t seed);

}  // namespace lockstep
