#include "lockstep/cli/run_cli.h"

int main(int argc, char** argv) { return lockstep::run_cli(argc, argv); }
