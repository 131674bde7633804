// The C++ library's random_device, which nobody uses here, would ask for a C library of 2022, where
// this function is new. In the module's own copy of that library it is this one.

#include <cstdlib>

extern "C" [[gnu::visibility("hidden")]] unsigned arc4random();
extern "C" unsigned arc4random() { std::abort(); }
