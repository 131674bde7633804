# What packages hold: the CPU's part of this build, linked once more so that it runs on older systems. It has the C++ library
# and fmt inside; what is left to load has an interface of C, and no exception comes from another C++ library.
set(standalone ${PROJECT_SOURCE_DIR}/tools/standalone)
add_library(lockstep_held_libraries OBJECT EXCLUDE_FROM_ALL ${standalone}/fmt.cpp ${standalone}/no_arc4random.cpp)
set_target_properties(lockstep_held_libraries PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(lockstep_held_libraries PRIVATE lockstep_flags fmt::fmt)

# lockstep_standalone(TARGET NAME): TARGET, called NAME, in the build's folder standalone/.
function(lockstep_standalone target name)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:lockstep_held_libraries>)
  target_link_options(${target} PRIVATE -static-libstdc++ -Wl,--as-needed,--exclude-libs=ALL)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/standalone
                                                                 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/standalone)
endfunction()
