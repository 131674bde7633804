#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "data/formats/formats.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kExtent = 32;
constexpr std::size_t kPlane = std::size_t{kExtent} * kExtent;
constexpr std::size_t kRecord = 1 + 3 * kPlane;
constexpr int kCifar10Classes = 10;

struct RecordFile {
  fs::path path;
  std::int64_t first = 0;  // sample
};

class Cifar10 final : public Dataset {
 public:
  explicit Cifar10(const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) add(path);
  }

  std::int64_t size() const override { return size_; }
  void load(std::int64_t index, Sample& sample) const override;
  Size image_size(std::int64_t) const override { return {kExtent, kExtent}; }
  std::string describe(std::int64_t index) const override {
    const RecordFile& file = file_of(index);
    return concat(file.path.string(), ", record ", index - file.first);
  }
  std::vector<std::string> files(std::int64_t index) const override {
    return {file_of(index).path.string()};
  }

 private:
  void add(const fs::path& path);
  const RecordFile& file_of(std::int64_t index) const;

  std::vector<RecordFile> files_;
  std::int64_t size_ = 0;
};

void Cifar10::add(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) {
    throw DataError(concat("expected ", path.string(),
                           ": the files of CIFAR-10's binary version are missing (",
                           error.message(), "); unpack cifar-10-binary.tar.gz there"));
  }
  if (bytes == 0 || bytes % kRecord != 0) {
    throw DataError(concat(path.string(), ": expected records of ", kRecord, " bytes, got ", bytes,
                           " bytes; the file is not whole, or of another format"));
  }
  files_.push_back({path, size_});
  size_ += static_cast<std::int64_t>(bytes / kRecord);
}

const RecordFile& Cifar10::file_of(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size_, "sample ", index, " of a data set of ", size_);
  const auto next =
      std::upper_bound(files_.begin(), files_.end(), index,
                       [](std::int64_t i, const RecordFile& file) { return i < file.first; });
  return *(next - 1);
}

void Cifar10::load(std::int64_t index, Sample& sample) const {
  const RecordFile& file = file_of(index);
  const FileBytes bytes(file.path, describe(index) + ":");
  std::array<char, kRecord> record{};
  const std::uint64_t place = static_cast<std::uint64_t>(index - file.first) * kRecord;
  if (bytes.read(place, record.data(), kRecord) < kRecord)
    throw DataError(concat(describe(index), ": cannot be read: it ended while being read"));
  const auto label = static_cast<std::uint8_t>(record[0]);
  if (label >= kCifar10Classes) {
    throw DataError(concat(describe(index), ": class ", int{label}, ", expected 0..",
                           kCifar10Classes - 1, "; CIFAR-100 has another format"));
  }
  sample.labels = {1, 1, {label}};
  sample.image.height = sample.image.width = kExtent;
  sample.image.pixels.resize(3 * kPlane);
  for (std::size_t pixel = 0; pixel < kPlane; ++pixel) {
    for (std::size_t c = 0; c < 3; ++c) {
      sample.image.pixels[pixel * 3 + c] =
          static_cast<std::uint8_t>(record[1 + c * kPlane + pixel]);
    }
  }
}

fs::path folder_of(const fs::path& root) {
  const fs::path unpacked = root / "cifar-10-batches-bin";
  return fs::is_directory(unpacked) ? unpacked : root;
}

}  // namespace

const std::vector<std::string>& cifar10_class_names() {
  static const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

std::unique_ptr<Dataset> make_cifar10(const DataOptions& options, Split split, std::uint64_t) {
  if (options.num_classes != kCifar10Classes) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             ": layout \"cifar10\" has ", kCifar10Classes, " classes"));
  }
  const fs::path folder = folder_of(options.root);
  const std::string& name = split == Split::kTrain ? options.train : options.val;
  if (name == "train") {
    std::vector<fs::path> files;
    for (int i = 1; i <= 5; ++i) files.push_back(folder / concat("data_batch_", i, ".bin"));
    return std::make_unique<Cifar10>(files);
  }
  if (name == "val" || name == "test") {
    return std::make_unique<Cifar10>(std::vector{folder / "test_batch.bin"});
  }
  throw ConfigError(
      concat("there is no split '", name, "' of layout \"cifar10\"; expected train, val or test"));
}

}  // namespace lockstep
