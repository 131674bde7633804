// Files of torch.save: the two containers around a pickle and its storages.

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "io/file_bytes.h"
#include "io/pth_pickle.h"
#include "io/pth_zip.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

using Kind = PickleValue::Kind;

// Far above any checkpoint's: what is large lies in storages.
constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{32} << 20;

constexpr const char* kBigEndian =
    "it was written on a big-endian machine: load it in Python on a little-endian one, and save it "
    "there";

std::uint64_t bytes_of(const PickleValue& storage) {
  return static_cast<std::uint64_t>(storage.integer) * storage.type->bytes;
}

// --- zip archives: STEM/data.pkl, STEM/data/KEY ---

// "STEM/"
std::string folder_of(const ZipArchive& archive) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, entry] : archive.entries()) {
    const bool found = name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size();
    if (found) return name.substr(0, name.size() - kPickle.size() + 1);
  }
  throw DataError("it is a zip archive that torch.save has not written: data.pkl is missing");
}

void check_byte_order(ZipArchive& archive, const std::string& folder) {
  const std::string name = folder + "byteorder";
  if (!archive.entries().contains(name)) return;  // PyTorch before 2.1
  const std::vector<std::byte> order = archive.read(name);
  constexpr std::string_view kLittle = "little";
  const std::string_view text(reinterpret_cast<const char*>(order.data()), order.size());
  if (text != kLittle) throw DataError(kBigEndian);
}

TensorMap load_zip(const FileBytes& file) {
  ZipArchive archive(file);
  const std::string folder = folder_of(archive);
  if (archive.entries().contains(folder + "constants.pkl")) {
    throw DataError(
        "it is a TorchScript program: save its state_dict() with torch.save, or as safetensors");
  }
  check_byte_order(archive, folder);
  const std::string name = folder + "data.pkl";
  if (archive.entries().at(name).bytes > kMaxPickleBytes) {
    throw DataError(concat("its pickle has ", archive.entries().at(name).bytes,
                           " bytes, expected at most ", kMaxPickleBytes));
  }
  const std::vector<std::byte> bytes = archive.read(name);
  const Pickle pickle(bytes);
  const auto read = [&](const PickleValue& storage) {
    const std::string entry = folder + "data/" + std::string(storage.text);
    const auto found = archive.entries().find(entry);
    if (found != archive.entries().end() && found->second.bytes != bytes_of(storage)) {
      throw DataError(concat("entry ", entry, " should have ", bytes_of(storage),
                             " bytes, but has ", found->second.bytes));
    }
    return archive.read(entry);
  };
  return read_model_tensors(pickle.root(), file.size(), read);
}

// --- before zip archives: pickles one after another, then for each key a length and a storage ---

// The pickles at the beginning of the file.
class Pickles {
 public:
  explicit Pickles(const FileBytes& file) : bytes_(file.head(kMaxPickleBytes)) {}

  /// The next one; `use` looks at it while it is there.
  template <typename Use>
  void next(const Use& use) {
    const Pickle pickle(std::span<const std::byte>(bytes_).subspan(at_));
    at_ += pickle.size();
    use(pickle);
  }
  std::uint64_t end() const { return at_; }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t at_ = 0;
};

void check_system(const PickleValue& system) {
  if (system.kind != Kind::kDict) throw DataError("its sys_info is no dict");
  for (std::size_t i = 0; i + 1 < system.items.size(); i += 2) {
    const PickleValue &key = *system.items[i], &value = *system.items[i + 1];
    if (key.text == "little_endian" && value.integer == 0) throw DataError(kBigEndian);
  }
}

// Where the storages are, by their keys.
std::map<std::string_view, std::uint64_t> find_storages(const FileBytes& file, std::uint64_t at,
                                                        const PickleValue& keys,
                                                        const Pickle& object) {
  std::map<std::string_view, const PickleValue*> known;
  for (const PickleValue* storage : object.storages()) {
    const auto [found, added] = known.emplace(storage->text, storage);
    if (!added &&
        (found->second->type != storage->type || found->second->integer != storage->integer)) {
      throw DataError(concat("storage ", storage->text, " is given two sizes"));
    }
  }
  constexpr std::uint64_t kCount = 8;  // bytes of the length before each storage
  std::map<std::string_view, std::uint64_t> places;
  for (const PickleValue* key : keys.items) {
    const auto found = known.find(key->text);
    if (found == known.end()) throw DataError("it has a storage of no tensor");
    const PickleValue& storage = *found->second;
    const std::uint64_t elements = little_endian(file.read(at, kCount));
    if (elements != static_cast<std::uint64_t>(storage.integer)) {
      throw DataError(concat("storage ", storage.text, " should have ", storage.integer,
                             " elements, but has ", elements));
    }
    at += kCount;
    if (!file.holds(at, bytes_of(storage))) {
      throw DataError(concat("storage ", storage.text, " should have ", bytes_of(storage),
                             " bytes from byte ", at, " on, but the file has ", file.size(),
                             " in all; it may be cut off"));
    }
    if (!places.emplace(storage.text, at).second) throw DataError("it has a storage twice");
    at += bytes_of(storage);
  }
  return places;
}

TensorMap load_legacy(const FileBytes& file) {
  constexpr std::int64_t kVersion = 1001;
  Pickles pickles(file);
  pickles.next([](const Pickle&) {});  // the magic number
  pickles.next([](const Pickle& version) {
    if (version.root().integer != kVersion) throw DataError("its version is not 1001");
  });
  pickles.next([](const Pickle& system) { check_system(system.root()); });
  TensorMap tensors;
  pickles.next([&](const Pickle& object) {
    pickles.next([&](const Pickle& keys) {
      const auto places = find_storages(file, pickles.end(), keys.root(), object);
      const auto read = [&](const PickleValue& storage) {
        const auto found = places.find(storage.text);
        if (found == places.end()) throw DataError(concat("storage ", storage.text, " is missing"));
        return file.read(found->second, bytes_of(storage));
      };
      tensors = read_model_tensors(object.root(), file.size(), read);
    });
  });
  return tensors;
}

}  // namespace

TensorMap load_pth(const fs::path& path) {
  try {
    const FileBytes file(path, "it");
    const std::vector<std::byte> head = file.head(kKindBytes);
    switch (kind_of(head)) {
      case WeightFileKind::kZip:
        return load_zip(file);
      case WeightFileKind::kLegacyPth:
        return load_legacy(file);
      default:
        throw DataError(
            concat("expected a file of torch.save (.pth), got ", describe_content(head)));
    }
  } catch (const DataError& error) {
    throw DataError(concat(path.string(), " cannot be read as PyTorch's weights: ", error.what()));
  }
}

}  // namespace lockstep
