#pragma once
// What the fuzz targets share. A target reads bytes as a file of one format; it may complain, by an
// Error whose text says what is wrong with the file, and do nothing else.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace lockstep::test {

/// A folder in memory where there is one, for the files of one process.
class FuzzFolder {
 public:
  FuzzFolder() {
    std::error_code ignored;
    const bool in_memory = std::filesystem::is_directory("/dev/shm", ignored);
    std::string name = (in_memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
                       "/lockstep_fuzz_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~FuzzFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

/// An input of several texts: what zero bytes part.
inline std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find('\0');
    parts.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? text : text.substr(end + 1);
  }
  return parts;
}

/// Calls `read`, which may throw Errors. Any other exception is a mistake of ours.
template <typename Read>
void may_complain(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    // An exception without a text leaves a user alone.
    if (std::string_view(error.what()).empty()) std::abort();
  }
}

}  // namespace lockstep::test
