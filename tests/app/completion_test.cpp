// What may follow on an unfinished command line, as the shells' scripts ask.

#include "app/completion.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "app/process.h"
#include "config/config.h"
#include "lockstep/core/check.h"
#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

struct Offered {
  FileKind files = FileKind::kNone;
  Words words;

  bool has(const std::string& word) const {
    return std::find(words.begin(), words.end(), word) != words.end();
  }
};

Offered complete(const Words& typed) {
  const CommandLine line({});
  const Completion completion = lockstep::complete(line, typed, builtin_tables());
  Offered offered{completion.files, {}};
  for (const Candidate& candidate : completion.candidates) offered.words.push_back(candidate.word);
  return offered;
}

}  // namespace

TEST_CASE("completion: subcommands and options, with what they do") {
  CHECK(complete({""}).has("train"));
  CHECK(complete({"d"}).words == Words{"data", "diagnose", "doctor", "docs"});
  CHECK(test::run_lockstep({"__complete", "--v"}).out ==
        "none\n--version\tDisplay program version information and exit\n");
  CHECK(complete({"train", "--res"}).words == Words{"--resume"});
  CHECK(complete({"eval", "runs/a", "-s", "bn.mode=sync", "--"}).has("--split"));
  CHECK(complete({"nothing", ""}).words.empty());
}

TEST_CASE("completion: every key of the configuration, and the words that it takes") {
  const Offered keys = complete({"train", "a.toml", "-s", ""});
  CHECK(keys.files == FileKind::kNone);
  CHECK(keys.words.size() > 70);
  CHECK(keys.has("optim.lr="));
  CHECK(complete({"train", "-s", "bn.mode="}).words ==
        Words{"bn.mode=local", "bn.mode=sync", "bn.mode=ghost", "bn.mode=group", "bn.mode=instance",
              "bn.mode=layer", "bn.mode=frozen", "bn.mode=renorm"});
  CHECK(complete({"train", "--set", "run.tf32=t"}).words == Words{"run.tf32=true"});
  CHECK(complete({"train", "-s", "model.arch=unet"}).words == Words{"model.arch=unet"});
  CHECK(complete({"train", "-s", "optim.lr="}).words.empty());
  CHECK(complete({"train", "--set=bn.eps_mode=c"}).words == Words{"--set=bn.eps_mode=clamp"});
}

TEST_CASE("completion: every word that is offered for a key is one that it takes") {
  const test::TemporaryFolder folder;
  const std::filesystem::path file =
      folder.write("a.toml", "[data]\nlayout = \"streets\"\n[data.augment]\n");
  std::size_t words = 0;
  for (const std::string& key : complete({"train", "-s", ""}).words) {
    for (const std::string& value : complete({"train", "-s", key}).words) {
      CAPTURE(value);
      std::string error;
      try {
        load_config(file, {value});
      } catch (const ConfigError& wrong) {
        error = wrong.what();  // it may not go with the other keys
      }
      CHECK(error.find(": expected") == std::string::npos);
      ++words;
    }
  }
  CHECK(words > 60);
}

TEST_CASE("completion: values by what an option takes") {
  CHECK(complete({"train", ""}).files == FileKind::kConfigs);
  CHECK(complete({"train", "a.toml", "-o", ""}).files == FileKind::kFolders);
  CHECK(complete({"train", "a.toml", "--init", ""}).files == FileKind::kAny);
  CHECK(complete({"train", "a.toml", ""}).files == FileKind::kNone);
  CHECK(complete({"predict", "runs/a", "b.png", ""}).files == FileKind::kAny);
  CHECK(complete({"train", "-d", "cpu:"}).has("cpu:4"));
  CHECK(complete({"train", "a.toml", "--resume", ""}).has("auto"));
  CHECK(complete({"train", "--resume", "auto", ""}).files == FileKind::kConfigs);
  CHECK(complete({"train", "--resume", "-d", "cpu:1", ""}).files == FileKind::kConfigs);
  CHECK(complete({"bench", ""}).words == Words{"step", "layers", "batch_norm", "exchange"});
  CHECK(complete({"bench", "step", ""}).files == FileKind::kConfigs);
  CHECK(complete({"compare", "--modes", "sync,"}).words ==
        Words{"sync,auto", "sync,local", "sync,sync:top:3", "sync,ghost", "sync,group",
              "sync,instance", "sync,layer", "sync,frozen", "sync,renorm"});
}

TEST_CASE("completion: config takes a layout with init, configurations with show and diff") {
  const Offered layouts = complete({"config", "init", ""});
  CHECK(layouts.files == FileKind::kNone);
  CHECK(layouts.words.size() == builtin_layouts().size());
  const Offered inputs = complete({"config", "diff", "a.toml", ""});
  CHECK(inputs.files == FileKind::kConfigs);
  CHECK(inputs.words.empty());
  CHECK(complete({"config", "schema", ""}).files == FileKind::kNone);
}

TEST_CASE("completion: pages of the documentation") {
  CHECK(complete({"docs", "run_"}).words == Words{"run_folder"});
}

}  // namespace lockstep
