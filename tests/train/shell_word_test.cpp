#include <doctest/doctest.h>

#include "run/report_text.h"

namespace lockstep {
namespace {

TEST_CASE("a word is quoted for a shell where it has to be, and only there") {
  CHECK(shell_word("runs/first-2_b/config.toml") == "runs/first-2_b/config.toml");
  CHECK(shell_word("cuda:0,1") == "cuda:0,1");
  CHECK(shell_word("optim.lr=0.1") == "optim.lr=0.1");
  CHECK(shell_word("runs/my run") == "'runs/my run'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("~/a") == "'~/a'");
  CHECK(shell_word("a$b") == "'a$b'");
  CHECK(shell_word("a\nb") == "'a\nb'");
  CHECK(shell_word("größe") == "'größe'");
  CHECK(shell_word("") == "''");
}

}  // namespace
}  // namespace lockstep
