#include "lockstep/app.h"

int main(int argc, char** argv) {
  lockstep::sleep_while_waiting(argv);
  return lockstep::run_cli(argc, argv);
}
