# lockstep_precompile(TARGET KIND) lets a target's sources begin with headers that were parsed once: with few cores and
# no compiler cache most of a build is the parsing of the standard library's. One set for each KIND, which says how its
# users are compiled; a compiler that cannot use a set parses its headers. Without LOCKSTEP_PRECOMPILED_HEADERS nothing
# happens: every source includes what it needs.
set(lockstep_standard_headers
    <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstdlib> <cstring>
    <exception> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span>
    <sstream> <string> <string_view> <thread> <unordered_map> <utility> <vector>)

function(lockstep_header_set kind)
  cmake_parse_arguments(ARG "" "" "HEADERS;OPTIONS;LIBRARIES" ${ARGN})
  set(source ${CMAKE_BINARY_DIR}/headers/${kind}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(lockstep_headers_${kind} STATIC ${source})
  target_compile_options(lockstep_headers_${kind} PRIVATE ${ARG_OPTIONS})
  target_link_libraries(lockstep_headers_${kind} PRIVATE lockstep_flags Threads::Threads OpenMP::OpenMP_CXX
                                                         ${ARG_LIBRARIES})
  set_target_properties(lockstep_headers_${kind} PROPERTIES PCH_WARN_INVALID OFF)
  target_precompile_headers(lockstep_headers_${kind} PRIVATE ${lockstep_standard_headers} ${ARG_HEADERS})
endfunction()

function(lockstep_precompile target kind)
  if(LOCKSTEP_PRECOMPILED_HEADERS)
    # Every user of a set is compiled like it; what has no pragma of OpenMP's stays as it is.
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
    set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
    target_precompile_headers(${target} REUSE_FROM lockstep_headers_${kind})
  endif()
endfunction()

if(LOCKSTEP_PRECOMPILED_HEADERS)
  lockstep_header_set(computing)
  lockstep_header_set(orchestrating HEADERS <fmt/format.h> <nlohmann/json.hpp>
                      OPTIONS $<$<CONFIG:Release>:-O1> LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
endif()
