#include <algorithm>
#include <cctype>
#include <string_view>

#include "io/file_bytes.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

using namespace std::string_view_literals;

struct Signature {
  std::size_t at;
  std::string_view bytes;
  const char* what;
};

constexpr const char* kDownloadAgain =
    "such as a server answers instead of a file: download it again";

// A pickle of 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;

constexpr Signature kSignatures[] = {
    {0, "version https://git-lfs"sv,
     "a Git LFS pointer, which stands for the file itself: run git lfs pull"},
    {0, "\x1f\x8b"sv, "a gzip'd file: unpack it with gunzip first"},
    {0, "BZh"sv, "a bzip2'd file: unpack it with bunzip2 first"},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "an xz'd file: unpack it with unxz first"},
    {0, "\x28\xb5\x2f\xfd"sv, "a zstd'd file: unpack it with unzstd first"},
    {257, "ustar"sv,
     "a tar archive: unpack it, or, if PyTorch before 0.1.10 has written it, load it in Python and "
     "write it with torch.save again"},
    {0, "\x89HDF"sv, "an HDF5 file, as Keras writes them"},
    {0, "\x93NUMPY"sv, "a NumPy array"},
    {0, "GGUF"sv, "a GGUF file"},
    {0, "\x89PNG"sv, "a PNG image"},
    {0, "\xff\xd8\xff"sv, "a JPEG image"},
    {0,
     "\x7f"
     "ELF"sv,
     "a program or library"},
};

std::string_view text_of(std::span<const std::byte> head) {
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

bool has(std::string_view head, std::size_t at, std::string_view bytes) {
  return head.size() >= at && head.substr(at).starts_with(bytes);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

bool is_text(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
}

// The first bytes in hexadecimal.
std::string hexadecimal(std::string_view head) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char c : head.substr(0, 8)) {
    if (!text.empty()) text += ' ';
    text += kDigits[c >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

std::string describe_text(std::string_view head) {
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  const std::string text = begin == std::string_view::npos ? "" : lower_case(head.substr(begin));
  if (text.starts_with("<!doctype html") || text.starts_with("<html")) {
    return concat("an HTML page, ", kDownloadAgain);
  }
  if (text.starts_with("<")) return concat("an XML document, ", kDownloadAgain);
  const std::size_t header = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.", 1);
  if (text.starts_with("[") && header > 1 && header < text.size() && text[header] == ']') {
    return "a TOML text, such as a configuration";
  }
  if (text.starts_with("{") || text.starts_with("[")) {
    return "a JSON text, such as the index of a file in parts or a server's error message";
  }
  return "a text";
}

}  // namespace

WeightFileKind kind_of(std::span<const std::byte> head) {
  constexpr std::size_t kHeader = 8;  // where a safetensors file's begins
  const std::string_view bytes = text_of(head);
  if (has(bytes, 0, "PK\x03\x04") || has(bytes, 0, "PK\x05\x06")) return WeightFileKind::kZip;
  if (has(bytes, 0, kLegacyMagic)) return WeightFileKind::kLegacyPth;
  if (has(bytes, kHeader, "{") && !is_text(bytes.substr(0, kHeader))) {
    return WeightFileKind::kSafetensors;
  }
  return WeightFileKind::kOther;
}

std::string describe_content(std::span<const std::byte> head) {
  const std::string_view bytes = text_of(head);
  if (bytes.empty()) return "an empty file";
  switch (kind_of(head)) {
    case WeightFileKind::kSafetensors:
      return "a safetensors file: read it with load_safetensors or load_weights";
    case WeightFileKind::kZip:
      return "a zip archive";
    case WeightFileKind::kLegacyPth:
      return "a file of torch.save";
    case WeightFileKind::kOther:
      break;
  }
  for (const Signature& signature : kSignatures) {
    if (has(bytes, signature.at, signature.bytes)) return signature.what;
  }
  if (is_text(bytes)) return describe_text(bytes);
  if (bytes[0] == '\x80') return "a pickle that torch.save has not written";
  return concat("a file that begins with the bytes ", hexadecimal(bytes));
}

namespace {

std::vector<std::byte> head_of(const fs::path& path) {
  try {
    return FileBytes(path, "it").head(kKindBytes);
  } catch (const DataError& error) {
    throw DataError(concat(path.string(), ": ", error.what()));
  }
}

}  // namespace

WeightFileKind weight_file_kind(const fs::path& path) { return kind_of(head_of(path)); }

TensorMap load_weights(const fs::path& path) {
  const std::vector<std::byte> head = head_of(path);
  switch (kind_of(head)) {
    case WeightFileKind::kSafetensors:
      return load_safetensors(path);
    case WeightFileKind::kZip:
    case WeightFileKind::kLegacyPth:
      return load_pth(path);
    case WeightFileKind::kOther:
      break;
  }
  throw DataError(concat(path.string(),
                         " holds no weights: expected a safetensors file or one of PyTorch's "
                         "torch.save (.pth), got ",
                         describe_content(head)));
}

}  // namespace lockstep
