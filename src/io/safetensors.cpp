// The safetensors format: nothing in a file is believed before it is checked.

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/utf8.h"
#include "io/atomic_file.h"
#include "io/file_bytes.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr const char* kMetadata = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

constexpr std::uint64_t kMaxExtent = std::numeric_limits<std::int64_t>::max();

// Bytes of one element; 0 for an unknown type.
std::uint64_t element_bytes(std::string_view dtype) {
  for (const char* name : {"F64", "I64", "U64", "C64"}) {
    if (dtype == name) return 8;
  }
  for (const char* name : {"F32", "I32", "U32"}) {
    if (dtype == name) return 4;
  }
  for (const char* name : {"F16", "BF16", "I16", "U16"}) {
    if (dtype == name) return 2;
  }
  for (const char* name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"}) {
    if (dtype == name) return 1;
  }
  return 0;
}

// Of a type that is known here or not: what nobody needs of such a file can be passed over.
bool is_type_name(std::string_view dtype) {
  constexpr std::size_t kLongest = 24;
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !dtype.empty() && dtype.size() <= kLongest &&
         dtype.find_first_not_of(kLetters) == std::string_view::npos;
}

// For a message. What is nested may be so deeply that to write it out ends the stack.
std::string shown(const Json& json) {
  constexpr std::size_t kMost = 16;
  const bool nested =
      std::any_of(json.begin(), json.end(), [](const Json& item) { return item.is_structured(); });
  return json.is_structured() && (nested || json.size() > kMost) ? json.type_name() : json.dump();
}

// Reads one file; every complaint names it.
class Reader {
 public:
  explicit Reader(const fs::path& path) : name_(path.string()), file_(path, complaint("it")) {}

  SafetensorsFile run() {
    const Json header = read_header();
    SafetensorsFile file;
    std::vector<Range> ranges;
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        file.metadata = read_metadata(entry);
      } else {
        ranges.push_back(read_range(name, entry));
        file.tensors[name] = {entry["dtype"], entry["shape"], {}};
      }
    }
    check_coverage(ranges);
    for (const Range& range : ranges) read_data(range, file.tensors[range.name]);
    return file;
  }

 private:
  struct Range {
    std::string name;
    std::uint64_t begin, end;  // in the data that follows the header
  };

  template <typename... Parts>
  void check(bool holds, const Parts&... parts) const {
    if (holds) return;
    throw DataError(complaint(parts...));
  }

  template <typename... Parts>
  std::string complaint(const Parts&... parts) const {
    return concat(name_, " is not a sound safetensors file: ", parts...);
  }

  void read(std::uint64_t offset, void* destination, std::uint64_t bytes) {
    check(file_.read(offset, destination, bytes) == bytes, "it ended while being read");
  }

  Json read_header() {
    check(file_.size() >= kLengthBytes, "expected at least ", kLengthBytes, " bytes, got ",
          file_.size());
    std::uint64_t length = 0;
    read(0, &length, kLengthBytes);
    check(length <= kMaxHeaderBytes, "expected a header of at most ", kMaxHeaderBytes,
          " bytes, got a length of ", length);
    check(length <= file_.size() - kLengthBytes, "it announces a header of ", length,
          " bytes, but only ", file_.size() - kLengthBytes, " follow");
    std::string text(length, '\0');
    read(kLengthBytes, text.data(), length);
    data_begin_ = kLengthBytes + length;
    check(!text.empty() && text[0] == '{', "its header is not a JSON object");
    return parse(text);
  }

  Json parse(const std::string& text) const {
    std::set<std::string> names;
    const auto unique = [&](int depth, Json::parse_event_t event, const Json& key) {
      if (depth == 1 && event == Json::parse_event_t::key) {
        check(names.insert(key.get<std::string>()).second, "its header has ", key.dump(), " twice");
      }
      return true;
    };
    try {
      return Json::parse(text, unique);
    } catch (const Json::exception& error) {
      check(false, "its header is not valid JSON (", error.what(), ")");
    }
    return {};
  }

  Metadata read_metadata(const Json& entry) const {
    check(entry.is_object(), kMetadata, " must be an object, got ", entry.type_name());
    Metadata metadata;
    for (const auto& [name, value] : entry.items()) {
      check(value.is_string(), kMetadata, ".", name, " must be a string, got ", value.type_name());
      metadata[name] = value;
    }
    return metadata;
  }

  Range read_range(const std::string& name, const Json& entry) const {
    check(entry.is_object() && entry.contains("dtype") && entry.contains("shape") &&
              entry.contains("data_offsets"),
          "tensor ", name, " must have dtype, shape and data_offsets");
    check(entry["dtype"].is_string() && is_type_name(entry["dtype"].get<std::string>()), "tensor ",
          name, " has the unknown dtype ", shown(entry["dtype"]));
    const Json& offsets = entry["data_offsets"];
    check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
              offsets[1].is_number_unsigned(),
          "tensor ", name, ": data_offsets must be two integers, got ", shown(offsets));
    const Range range{name, offsets[0], offsets[1]};
    const std::uint64_t available = file_.size() - data_begin_;
    check(range.begin <= range.end && range.end <= available, "tensor ", name, " lies at bytes ",
          range.begin, " to ", range.end, " of data that has ", available,
          "; the file may be cut off");
    const std::uint64_t expected = tensor_bytes(name, entry);
    const bool known = element_bytes(entry["dtype"].get<std::string>()) > 0;
    check(!known || range.end - range.begin == expected, "tensor ", name, " of type ",
          shown(entry["dtype"]), " and shape ", shown(entry["shape"]), " needs ", expected,
          " bytes, got ", range.end - range.begin);
    return range;
  }

  std::uint64_t tensor_bytes(const std::string& name, const Json& entry) const {
    std::uint64_t bytes =
        std::max<std::uint64_t>(1, element_bytes(entry["dtype"].get<std::string>()));
    check(entry["shape"].is_array(), "tensor ", name, ": shape must be a list");
    for (const Json& extent : entry["shape"]) {
      check(extent.is_number_unsigned() && extent.get<std::uint64_t>() <= kMaxExtent &&
                !__builtin_mul_overflow(bytes, extent.get<std::uint64_t>(), &bytes),
            "tensor ", name, " has the impossible shape ", shown(entry["shape"]));
    }
    return bytes;
  }

  // The format wants the data covered exactly once.
  void check_coverage(std::vector<Range> ranges) const {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    std::uint64_t end = 0;
    for (const Range& range : ranges) {
      check(range.begin == end, "tensor ", range.name, " begins at byte ", range.begin,
            ", expected ", end, ": tensors overlap or leave gaps");
      end = range.end;
    }
    check(end == file_.size() - data_begin_, "its tensors end at byte ", end, " of data that has ",
          file_.size() - data_begin_);
  }

  void read_data(const Range& range, HostTensor& tensor) {
    tensor.data.resize(range.end - range.begin);
    read(data_begin_ + range.begin, tensor.data.data(), tensor.data.size());
  }

  const std::string name_;
  const FileBytes file_;
  std::uint64_t data_begin_ = 0;
};

void check_tensor(const std::string& name, const HostTensor& tensor) {
  LOCKSTEP_CHECK(name != kMetadata && is_utf8(name), "a tensor has the name '", name,
                 "', which a safetensors file cannot hold: expected UTF-8, and not ", kMetadata);
  std::uint64_t bytes = element_bytes(tensor.dtype);
  LOCKSTEP_CHECK(is_type_name(tensor.dtype), "tensor ", name, " has the unknown dtype ",
                 tensor.dtype);
  const bool known = bytes > 0;
  for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
  LOCKSTEP_CHECK(!known || bytes == tensor.data.size(), "tensor ", name, " needs ", bytes,
                 " bytes, got ", tensor.data.size());
}

// Wide types first, so that every tensor is aligned to its elements in a mapped file.
std::vector<TensorMap::const_iterator> storage_order(const TensorMap& tensors) {
  std::vector<TensorMap::const_iterator> order;
  for (auto at = tensors.begin(); at != tensors.end(); ++at) order.push_back(at);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return element_bytes(a->second.dtype) > element_bytes(b->second.dtype);
  });
  return order;
}

}  // namespace

namespace {

/// Calls `use` with the parts of the file one after another.
template <typename Use>
void with_parts(const SafetensorsFile& file, const Use& use) {
  Json header = Json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::vector<std::string_view> parts(2);  // length and header come last
  std::uint64_t offset = 0;
  for (const auto& at : storage_order(file.tensors)) {
    const auto& [name, tensor] = *at;
    check_tensor(name, tensor);
    const std::uint64_t end = offset + tensor.data.size();
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    parts.emplace_back(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  parts[0] = {reinterpret_cast<const char*>(&length), kLengthBytes};
  parts[1] = text;
  use(parts);
}

}  // namespace

void write_safetensors(const fs::path& path, const SafetensorsFile& file) {
  with_parts(file, [&](const auto& parts) { write_parts_atomically(path, parts); });
}

std::string safetensors_bytes(const SafetensorsFile& file) {
  std::string bytes;
  with_parts(file, [&](const auto& parts) {
    for (const std::string_view part : parts) bytes += part;
  });
  return bytes;
}

SafetensorsFile read_safetensors(const fs::path& path) { return Reader(path).run(); }

void save_safetensors(const fs::path& path, const TensorMap& tensors) {
  write_safetensors(path, {tensors, {{"format", "pt"}}});
}

TensorMap load_safetensors(const fs::path& path) { return read_safetensors(path).tensors; }

}  // namespace lockstep
