#include "io/npy.h"

#include <bit>
#include <numeric>
#include <string>
#include <string_view>

#include "io/atomic_file.h"
#include "io/row_writers.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "'<f4' below says so");

// Magic, version and length of the text, which is padded so that the values begin at a multiple of
// 64 bytes.
std::string header(const std::vector<std::int64_t>& shape) {
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (const std::int64_t extent : shape) text += concat(extent, ",");
  text += "), }";
  constexpr std::size_t kPrefix = 10, kAlignment = 64;
  text.append(kAlignment - 1 - (kPrefix + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string prefix = "\x93NUMPY";
  for (const std::size_t byte :
       {std::size_t{1}, std::size_t{0}, text.size() & 255, text.size() >> 8})
    prefix += static_cast<char>(byte);
  return prefix + text;
}

}  // namespace

PlanesWriter::PlanesWriter(const std::filesystem::path& path, std::int64_t classes, Size size)
    : file_(path, WrittenFile::Mode::kReplace),
      classes_(static_cast<std::size_t>(classes)),
      pixels_(static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width)) {
  const std::string head = header({classes, size.height, size.width});
  header_ = head.size();
  file_.write(head);
}

void PlanesWriter::write(std::span<const float> values) {
  const std::size_t count = values.size() / classes_;
  std::vector<float> plane(count);
  for (std::size_t c = 0; c < classes_; ++c) {
    for (std::size_t i = 0; i < count; ++i) plane[i] = values[i * classes_ + c];
    file_.write_at(header_ + (c * pixels_ + done_) * sizeof(float),
                   {reinterpret_cast<const char*>(plane.data()), count * sizeof(float)});
  }
  done_ += count;
}

void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               std::span<const float> values) {
  const std::int64_t count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  LOCKSTEP_CHECK(count == static_cast<std::int64_t>(values.size()), "an array of ", count,
                 " values, got ", values.size());
  const std::string head = header(shape);
  const std::string_view parts[] = {
      head, {reinterpret_cast<const char*>(values.data()), values.size_bytes()}};
  write_parts(path, parts);
}

}  // namespace lockstep
