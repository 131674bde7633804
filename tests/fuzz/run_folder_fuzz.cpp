// What a run has written down, as resuming, reports and `lockstep logs` read it back: scalars.json,
// events.jsonl, env.json and the file of measured choices, parted by zero bytes.

#include "backend/conv/autotuner.h"
#include "fuzz/fuzz.h"
#include "report/data/report_data.h"
#include "run/choices.h"
#include "run/json_lines.h"
#include "run/summary.h"
#include "run/tensorboard.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  auto parts = test::parts_of(test::text_of(data, bytes));
  parts.resize(4);
  const RunFolder run{folder.path()};
  const std::string scalars = run.scalars().filename(), events = run.events().filename();
  folder.write(scalars, parts[0]);
  folder.write(run.timing().filename(), parts[0]);
  folder.write(events, parts[1]);
  folder.write(run.environment().filename(), parts[2]);
  const auto choices = folder.write("autotune.json", parts[3]);
  test::may_complain([&] { read_run(folder.path(), builtin_tables()); });
  test::may_complain([&] { read_scalars(run.scalars()); });
  test::may_complain([&] { last_validated_step(run.scalars()); });
  test::may_complain([&] { changed_choices(run.environment()); });
  test::may_complain([&] { Autotuner(choices).kept("machine"); });
  test::may_complain([&] {
    trim_json_lines(run.scalars(), 2);
    if (trim_json_lines(run.scalars(), 2) != 0) std::abort();
  });
  return 0;
}
