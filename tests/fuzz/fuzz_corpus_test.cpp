// The fuzz targets without a fuzzer: every input of the corpus, and mutations of it that are the
// same in every run.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "fuzz/fuzz.h"
#include "support/temporary_folder.h"

// Of every target, its LLVMFuzzerTestOneInput under a name of its own.
using Target = int(const std::uint8_t* data, std::size_t bytes);
extern "C" {
Target fuzz_checkpoint, fuzz_config, fuzz_exif, fuzz_jpeg, fuzz_lists, fuzz_npy, fuzz_pickle,
    fuzz_png, fuzz_pth, fuzz_run_folder, fuzz_safetensors, fuzz_tiff, fuzz_window;
}

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongest = 1 << 15;

std::vector<std::string> corpus_of(const std::string& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(LOCKSTEP_FUZZ_CORPUS) / target)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const fs::path& file : files) inputs.push_back(read_text(file));
  return inputs;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus) {}

  std::string next() {
    std::string input = any();
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input);
    return input.substr(0, kLongest);
  }

 private:
  std::size_t below(std::size_t count) { return count == 0 ? 0 : random_() % count; }
  const std::string& any() { return corpus_[below(corpus_.size())]; }

  void change(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, 1 + below(16));
    switch (below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        return;
      case 1:
        input.erase(at, length);
        return;
      case 2:
        input.insert(at, input.substr(below(input.size()), 1 + below(32)));
        return;
      case 3:
        input.resize(at);
        return;
      case 4: {  // another one's end
        const std::string& other = any();
        input.replace(at, std::string::npos, other.substr(below(other.size())));
        return;
      }
      default: {
        constexpr std::array<std::uint64_t, 8> kNumbers{
            0, 1, 0x7f, 0xff, 0x7fffffff, 0x80000000, 0x7fffffffffffffff, 0xffffffffffffffff};
        const std::uint64_t number = kNumbers[below(kNumbers.size())];
        std::memcpy(input.data() + at, &number, std::min(length, sizeof number));
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_{2024};
};

std::string problem_with(Target* target, const std::string& input) {
  try {
    target(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void check(Target* target, const std::string& name, const std::string& input) {
  const std::string problem = problem_with(target, input);
  CHECK(problem == "");
  if (problem.empty()) return;
  const fs::path kept = fs::temp_directory_path() / ("fuzz_" + name + "_" + "failure");
  std::ofstream(kept, std::ios::binary) << input;
  MESSAGE(name << ": the input is kept in " << kept.string());
}

void check_target(const std::string& name, Target* target, int mutations) {
  CAPTURE(name);
  const std::vector<std::string> corpus = corpus_of(name);
  REQUIRE(!corpus.empty());
  for (const std::string& input : corpus) check(target, name, input);
  check(target, name, "");
  Mutator mutator(corpus);
  for (int i = 0; i < mutations; ++i) check(target, name, mutator.next());
}

}  // namespace

TEST_CASE("the fuzz targets' corpus and mutations of it") {
  SUBCASE("checkpoint") { check_target("checkpoint", fuzz_checkpoint, 5'000); }
  SUBCASE("config") { check_target("config", fuzz_config, 1'000); }
  SUBCASE("exif") { check_target("exif", fuzz_exif, 50'000); }
  SUBCASE("jpeg") { check_target("jpeg", fuzz_jpeg, 20'000); }
  SUBCASE("lists") { check_target("lists", fuzz_lists, 2'000); }
  SUBCASE("npy") { check_target("npy", fuzz_npy, 50'000); }
  SUBCASE("pickle") { check_target("pickle", fuzz_pickle, 50'000); }
  SUBCASE("png") { check_target("png", fuzz_png, 20'000); }
  SUBCASE("pth") { check_target("pth", fuzz_pth, 20'000); }
  SUBCASE("run_folder") { check_target("run_folder", fuzz_run_folder, 2'000); }
  SUBCASE("safetensors") { check_target("safetensors", fuzz_safetensors, 20'000); }
  SUBCASE("tiff") { check_target("tiff", fuzz_tiff, 20'000); }
  SUBCASE("window") { check_target("window", fuzz_window, 20'000); }
}

}  // namespace lockstep::test
