# `cmake --install` has three components. `program`: the program, completion for bash and zsh, the documents
# and the example configurations. `dev`: the public headers, one archive with everything in it, or with
# LOCKSTEP_SHARED one shared library, what CMake (find_package(Lockstep)) and pkg-config (lockstep.pc) find it by, and the
# examples. The flags that the library is compiled with stay here: a user gets an include folder, C++20 and the libraries
# to link. `mpi`: by what several processes talk, where there was an MPI. The target `uninstall` takes away what the last
# `cmake --install` of each component has written.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The documents keep the places that they have in the source tree, so that links among them and the paths that they name
# hold. The program looks for them in ../share/lockstep (src/app/files.h), in a build folder, too.
set(share ${CMAKE_INSTALL_DATADIR}/lockstep)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/lockstep)
foreach(shared README.md docs data)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${shared} ${PROJECT_BINARY_DIR}/share/lockstep/${shared} SYMBOLIC)
endforeach()
install(TARGETS lockstep_main RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${share} COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/lockstep RENAME copyright
        COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/data DESTINATION ${share} COMPONENT program
        FILES_MATCHING PATTERN "*.md" PATTERN "*.toml" PATTERN "*.svg" PATTERN "*.html")
if(TARGET lockstep_mpi)  # where the program in the folder beside it looks
  install(TARGETS lockstep_mpi LIBRARY DESTINATION lib/lockstep COMPONENT mpi)
endif()

# A package for Debian has it; tools/package writes it.
install(FILES ${PROJECT_BINARY_DIR}/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program OPTIONAL)

set(LOCKSTEP_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Where zsh looks for completion")
install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/_lockstep DESTINATION ${LOCKSTEP_ZSH_DIR} COMPONENT program)

set(archived ${LOCKSTEP_MODULES})
if(LOCKSTEP_HAS_CUDA)
  list(APPEND archived kernels)
endif()
list(TRANSFORM archived REPLACE "(.+)" "$<TARGET_OBJECTS:lockstep_\\1>")
get_property(kernel_objects GLOBAL PROPERTY LOCKSTEP_KERNEL_OBJECTS)
list(APPEND archived ${kernel_objects})
function(lockstep_library target kind)
  add_library(${target} ${kind} ${ARGN} ${archived})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME lockstep EXPORT_NAME lockstep LINKER_LANGUAGE CXX)
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()
lockstep_library(lockstep_archive STATIC)

# What the archive's objects need, by the names that a linker knows.
set(libraries dnnl fmt png tiff turbojpeg xxhash z gomp pthread)
set(LOCKSTEP_LIBRARY_PATHS)
if(LOCKSTEP_HAS_CUDA)
  get_filename_component(cuda_libraries ${CUDA_cudart_static_LIBRARY} DIRECTORY)
  get_filename_component(cudnn_libraries ${CUDNN_LIBRARY} DIRECTORY)
  set(LOCKSTEP_LIBRARY_PATHS ${cuda_libraries} ${cudnn_libraries})
  list(REMOVE_DUPLICATES LOCKSTEP_LIBRARY_PATHS)
  list(APPEND libraries cudnn cudart_static dl rt)
  if(NCCL_LIBRARY)
    list(APPEND libraries nccl)
  endif()
endif()
target_link_directories(lockstep_archive INTERFACE ${LOCKSTEP_LIBRARY_PATHS})
target_link_libraries(lockstep_archive INTERFACE ${libraries})

# The same objects as a shared library, which shows what is in namespace lockstep and brings its libraries along.
if(LOCKSTEP_PIC)
  if(NOT LOCKSTEP_SHARED)
    set(beside EXCLUDE_FROM_ALL)
  endif()
  lockstep_library(lockstep_shared SHARED ${beside})
  set_target_properties(lockstep_shared PROPERTIES VERSION ${PROJECT_VERSION}
                                                   SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                                                   LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exported_symbols.map)
  target_link_directories(lockstep_shared PRIVATE ${LOCKSTEP_LIBRARY_PATHS})
  target_link_options(lockstep_shared PRIVATE
                      LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exported_symbols.map LINKER:--no-undefined)
  target_link_libraries(lockstep_shared PRIVATE ${libraries})
  if(LOCKSTEP_SANITIZE)
    target_link_options(lockstep_shared PRIVATE -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endif()
set(installed lockstep_archive)
if(LOCKSTEP_SHARED)
  set(installed lockstep_shared)
endif()

# Who builds the program alone has all that goes into the library, and perhaps an older one.
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${PROJECT_BINARY_DIR}\" --target ${installed}
                              COMMAND_ERROR_IS_FATAL ANY)" COMPONENT dev)
install(TARGETS ${installed} EXPORT LockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev NAMELINK_COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${share} COMPONENT dev)
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep COMPONENT dev)

# What a program that links the archive must find: packages of CMake's, and libraries that have none.
set(LOCKSTEP_FOUND_PACKAGES)
set(LOCKSTEP_FOUND_LIBRARIES)
if(NOT LOCKSTEP_SHARED)
  set(LOCKSTEP_FOUND_PACKAGES OpenMP fmt PNG ZLIB)
  set(LOCKSTEP_FOUND_LIBRARIES ${libraries})
  list(REMOVE_ITEM LOCKSTEP_FOUND_LIBRARIES fmt png z gomp pthread dl rt)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in LockstepConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep COMPONENT dev)

set(LOCKSTEP_PC_LIBS "")
foreach(path ${LOCKSTEP_LIBRARY_PATHS})
  string(APPEND LOCKSTEP_PC_LIBS " -L${path} -Wl,-rpath,${path}")
endforeach()
if(LOCKSTEP_SHARED)
  string(APPEND LOCKSTEP_PC_LIBS " -Wl,-rpath,\${libdir}")
else()
  foreach(library ${libraries})
    string(APPEND LOCKSTEP_PC_LIBS " -l${library}")
  endforeach()
endif()
# The folder of libraries is lib, or lib/x86_64-linux-gnu where /usr is Debian's.
file(RELATIVE_PATH LOCKSTEP_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
                                    -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
