#include "data/content_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <string>

#include "core/home_path.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using Known = std::pair<std::uint64_t, std::uint64_t>;

// Of the file's format; a file of another is not read.
constexpr std::uint64_t kMagic = 0x4154414447434F4CU;
// Fewer files or bytes are read again as fast.
constexpr std::size_t kFewFiles = 1000;
constexpr std::uint64_t kFewBytes = std::uint64_t{64} << 20U;
// A file that was changed a moment ago may be changed again within the clock's tick.
constexpr std::int64_t kMoment = 2;

/// What tells a file from another, and from what it was before.
std::uint64_t key_of(const std::string& path, const struct stat& about) {
  const std::array<std::int64_t, 5> numbers{about.st_size, about.st_mtim.tv_sec,
                                            about.st_mtim.tv_nsec, about.st_ctim.tv_sec,
                                            about.st_ctim.tv_nsec};
  return XXH3_64bits_withSeed(path.data(), path.size(),
                              XXH3_64bits(numbers.data(), sizeof(numbers)));
}

bool is_settled(const struct stat& about, std::time_t now) {
  return now - std::max(about.st_mtim.tv_sec, about.st_ctim.tv_sec) > kMoment;
}

/// 0 where it cannot be read.
std::uint64_t read_hash(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> piece(std::size_t{1} << 18U);
  ssize_t count = 0;
  while ((count = ::read(file, piece.data(), piece.size())) > 0)
    XXH3_64bits_update(state.get(), piece.data(), static_cast<std::size_t>(count));
  ::close(file);
  return count < 0 ? 0 : XXH3_64bits_digest(state.get());
}

struct Header {
  std::uint64_t magic = 0, hash = 0;  // of what follows
};

/// Empty where the file is not whole.
std::vector<Known> read_known(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code no_file;
  const std::uintmax_t bytes = fs::file_size(path, no_file);
  Header header;
  const bool begun = !no_file && file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (!begun || header.magic != kMagic) return {};
  std::vector<Known> known((bytes - sizeof(header)) / sizeof(Known));
  const std::size_t size = known.size() * sizeof(Known);
  file.read(reinterpret_cast<char*>(known.data()), static_cast<std::streamsize>(size));
  if (!file || header.hash != XXH3_64bits(known.data(), size)) return {};
  return known;
}

}  // namespace

std::string hex(std::uint64_t hash) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(hash));
  return digits.data();
}

ContentCache::ContentCache(const fs::path& root, std::time_t now) : now_(now) {
  const fs::path folder = cache_path("LOCKSTEP_DATA_CACHE", fs::path("lockstep") / "data");
  if (folder.empty()) return;
  const std::string name = root.string();
  path_ = folder / hex(XXH3_64bits(name.data(), name.size()));
  before_ = read_known(path_);
}

std::uint64_t ContentCache::hash_of(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return 0;
  const std::uint64_t key = key_of(path, about);
  const auto known = std::lower_bound(before_.begin(), before_.end(), Known{key, 0});
  const bool is_known = known != before_.end() && known->first == key;
  const std::uint64_t content = is_known ? known->second : read_hash(path);
  const std::lock_guard lock(mutex_);
  if (content != 0 && is_settled(about, now_)) kept_.emplace_back(key, content);
  if (!is_known) bytes_read_ += static_cast<std::uint64_t>(about.st_size);
  return content;
}

void ContentCache::save() const {
  const bool read_soon = kept_.size() < kFewFiles && bytes_read_ < kFewBytes;
  if (path_.empty() || kept_.empty() || bytes_read_ == 0 || read_soon) return;
  std::vector<Known> sorted = kept_;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t size = sorted.size() * sizeof(Known);
  const Header header{kMagic, XXH3_64bits(sorted.data(), size)};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(sorted.data()), size);
  try {
    fs::create_directories(path_.parent_path());
    write_file_atomically(path_, bytes);
  } catch (const std::exception&) {  // it only saves time
  }
}

}  // namespace lockstep
