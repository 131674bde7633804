#include "io/row_source.h"

#include <algorithm>
#include <utility>

#include "io/codec.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::ptrdiff_t values_in_rows(const Image& image, int rows) {
  return static_cast<std::ptrdiff_t>(rows) * image.width * image.channels;
}

class RowsInMemory : public RowSource {
 public:
  explicit RowsInMemory(const Image& image)
      : RowSource({image.height, image.width}, first_channels(image.channels), std::nullopt),
        image_(image) {}

 private:
  void decode(int first, int count, Image& rows) override {
    rows.height = count;
    rows.width = image_.width;
    rows.channels = image_.channels;
    rows.type = image_.type;
    const auto copy = [&](const auto& from, auto& to) {
      to.clear();
      if (from.empty()) return;
      const auto begin = from.begin() + values_in_rows(image_, first);
      to.assign(begin, begin + values_in_rows(image_, count));
    };
    copy(image_.pixels, rows.pixels);
    copy(image_.words, rows.words);
    copy(image_.floats, rows.floats);
  }

  const Image& image_;
};

/// Declared before the base that reads it.
struct OwnedImage {
  Image image;
};

class RowsOfDecoded : private OwnedImage, public RowsInMemory {
 public:
  explicit RowsOfDecoded(Image decoded)
      : OwnedImage{std::move(decoded)}, RowsInMemory(OwnedImage::image) {}
};

/// Of several files, whose channels follow one another.
class StackedRows : public RowSource {
 public:
  struct Part {
    std::string name;
    std::unique_ptr<RowSource> rows;
  };
  StackedRows(std::vector<Part> parts, std::vector<int> channels)
      : RowSource(parts.front().rows->size(), std::move(channels), std::nullopt),
        parts_(std::move(parts)) {
    for (const Part& part : parts_) {
      if (part.rows->size() == size()) continue;
      throw DataError(concat(part.name, ": the files of an image must be of one size, but this ",
                             "one is ", to_string(part.rows->size()), ", and the first one ",
                             to_string(size())));
    }
  }
  int step() const override {
    int step = 1;
    for (const Part& part : parts_) step = std::max(step, part.rows->step());
    return step;
  }

 private:
  void decode(int first, int count, Image& rows) override {
    parts_.front().rows->read(first, count, rows);
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      Image part;
      parts_[i].rows->read(first, count, part);
      append_channels(std::move(part), parts_[i].name, rows);
    }
  }

  std::vector<Part> parts_;
};

std::unique_ptr<RowSource> stacked_rows(const std::filesystem::path& path, const ImageRule& rule) {
  std::vector<StackedRows::Part> parts;
  int channels = 0;
  for (const std::filesystem::path& file : channel_files_of(path, rule)) {
    const ImageRule own = rule_of_part(file, rule);
    channels += own.channels;
    parts.push_back({file.string(), open_rows(file, own)});
  }
  return std::make_unique<StackedRows>(std::move(parts),
                                       chosen_channels({.count = channels}, rule, path.string()));
}

}  // namespace

void RowSource::read(int first, int count, Image& rows) {
  LOCKSTEP_CHECK(first >= 0 && count > 0 && first <= size_.height - count, "rows ", first, " to ",
                 first + count, " of ", size_.height);
  decode(first, count, rows);
  mark_missing(nodata_, rows);
  if (nodata_ && misses_some()) make_floats(rows);
  take_channels(channels_, rows);
}

// A value that is not there makes the whole image floats: its rows must be so where all are there.
bool RowSource::misses_some() {
  constexpr int kRows = 64;
  const int each = std::max(step(), kRows);
  Image band;
  for (int y = 0; !misses_some_ && y < size_.height; y += each) {
    decode(y, std::min(each, size_.height - y), band);
    mark_missing(nodata_, band);
    if (!band.floats.empty()) misses_some_ = true;
  }
  if (!misses_some_) misses_some_ = false;
  return *misses_some_;
}

std::unique_ptr<RowSource> open_rows(const std::filesystem::path& path, const ImageRule& rule) {
  if (!rule.channel_files.empty()) return stacked_rows(path, rule);
  if (auto rows = rows_of_file(path, rule)) return rows;
  Image image;
  read_image(path, image, rule);
  return std::make_unique<RowsOfDecoded>(std::move(image));
}

std::unique_ptr<RowSource> rows_of(const Image& image) {
  return std::make_unique<RowsInMemory>(image);
}

ImageBands bands_of(const Image& image) {
  return [&image](const auto& use) { use(image); };
}

ImageBands bands_of(RowSource& source) {
  return [&source](const auto& use) {
    constexpr int kRows = 64;
    const int each = std::max(source.step(), kRows), height = source.size().height;
    Image band;
    for (int y = 0; y < height; y += each) {
      source.read(y, std::min(each, height - y), band);
      use(band);
    }
  };
}

void RowBand::hold(int first, int end) {
  LOCKSTEP_CHECK(first >= first_, "rows from ", first, " on, after those from ", first_);
  drop(std::min(first - first_, rows_.height));
  first_ = first;
  const int have = first_ + rows_.height;
  const int step = source_.step();
  const int reach = std::min((end + step - 1) / step * step, source_.size().height);
  if (have < reach) append(reach - have);
}

void RowBand::drop(int count) {
  if (count == 0) return;
  with_values(rows_, [&](auto& values) {
    values.erase(values.begin(), values.begin() + values_in_rows(rows_, count));
  });
  rows_.height -= count;
}

void RowBand::append(int count) {
  source_.read(first_ + rows_.height, count, more_);
  if (rows_.height == 0) {
    std::swap(rows_, more_);
    // What grows by itself has room for twice as much.
    with_values(rows_, [&](auto& values) {
      values.reserve(static_cast<std::size_t>(values_in_rows(rows_, most_ + source_.step())));
    });
    return;
  }
  const auto join = [](auto& values, const auto& others) {
    values.insert(values.end(), others.begin(), others.end());
  };
  join(rows_.pixels, more_.pixels);
  join(rows_.words, more_.words);
  join(rows_.floats, more_.floats);
  rows_.height += more_.height;
}

}  // namespace lockstep
