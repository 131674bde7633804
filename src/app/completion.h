#pragma once
// What may follow on an unfinished command line: `lockstep __complete WORDS...`, which the shells'
// scripts in tools/completion ask.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/command_line.h"

namespace lockstep {

struct Candidate {
  std::string word;  // the whole word; one that ends in = goes on
  std::string says;  // one line; may be empty
};

/// Names of files are the shell's to complete.
enum class FileKind : std::uint8_t {
  kNone,
  kFolders,
  kConfigs,  // folders and *.toml
  kAny,
};

struct Completion {
  std::vector<Candidate> candidates;  // all begin with what is typed
  FileKind files = FileKind::kNone;
};

/// Of the last of `words`, which may be empty; the program's name is not among them.
Completion complete(const CommandLine& line, std::span<const std::string> words,
                    const Tables& tables);

/// For the scripts: none, folders, configs or files on the first line, then WORD<tab>SAYS.
std::string to_text(const Completion& completion);

}  // namespace lockstep
