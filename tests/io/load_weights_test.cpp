// What a file of weights is, its contents say; and what came instead is named.

#include <doctest/doctest.h>

#include <string>

#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

TEST_CASE("weights: what came instead of weights is named") {
  const TemporaryFolder folder;
  const auto refuses = [&](const std::string& bytes, const char* complaint) {
    CAPTURE(complaint);
    const std::filesystem::path path = folder.write("model.pth", bytes);
    CHECK_THROWS_WITH_AS(load_weights(path), doctest::Contains(complaint), DataError);
    CHECK_THROWS_WITH_AS(load_weights(path), doctest::Contains(path.c_str()), DataError);
    CHECK_THROWS_WITH_AS(load_pth(path), doctest::Contains(complaint), DataError);
  };
  refuses("", "an empty file");
  refuses("\n <!DOCTYPE html>\n<title>404</title>", "an HTML page");
  refuses("<HTML><body>", "an HTML page");
  refuses("<?xml version=\"1.0\"?><Error><Code>AccessDenied", "an XML document");
  refuses("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
          "a Git LFS pointer, which stands for the file itself: run git lfs pull");
  refuses("\x1f\x8b\x08 and more", "a gzip'd file: unpack it with gunzip first");
  refuses("BZh91AY", "a bzip2'd file");
  refuses(std::string("\xfd") + "7zXZ" + std::string(1, '\0'), "an xz'd file");
  refuses("\x28\xb5\x2f\xfd...", "a zstd'd file");
  refuses(std::string(257, 'x') + "ustar" + std::string(300, '\0'), "a tar archive");
  refuses("\x89HDF\r\n\x1a\n", "an HDF5 file");
  refuses(R"({"metadata": {"total_size": 1}, "weight_map": {}})", "a JSON text");
  refuses(R"({"error": {"code": 403}})", "a JSON text");  // a brace where safetensors has one
  refuses("weights, honestly\n", "a text");
  refuses("\x80\x04\x95 and more", "a pickle that torch.save has not written");
  refuses(std::string("\x07\x00\xfe\xff", 4), "begins with the bytes 07 00 fe ff");
  refuses("PK\x03\x04 and nothing more", "zip directory is missing at the end");
  CHECK_THROWS_WITH_AS(load_weights(folder.path() / "absent"), doctest::Contains("No such file"),
                       DataError);
  CHECK_THROWS_WITH_AS(load_weights(folder.path()), doctest::Contains("it is a folder"), DataError);
}

TEST_CASE("weights: safetensors files are known by what they hold, whatever their name") {
  const TemporaryFolder folder;
  TensorMap tensors;
  tensors["w"] = {"F32", {1}, std::vector<std::byte>(4)};
  const std::filesystem::path path = folder.path() / "model.pth";
  save_safetensors(path, tensors);
  CHECK(load_weights(path).at("w").shape == std::vector<std::int64_t>{1});
  CHECK_THROWS_WITH_AS(load_pth(path),
                       doctest::Contains("got a safetensors file: read it with load_safetensors"),
                       DataError);
  const std::string bytes = read_text(path);
  folder.write("model.pth", bytes.substr(0, bytes.size() - 1));
  CHECK_THROWS_WITH_AS(load_weights(path), doctest::Contains("not a sound safetensors file"),
                       DataError);
}

}  // namespace lockstep::test
