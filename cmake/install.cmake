# `cmake --install`: the program, the public headers, one archive with everything in it, and what CMake
# (find_package(Lockstep)) and pkg-config (lockstep.pc) find it by. The flags that the library is compiled with stay
# here: a user gets an include folder, C++20 and the libraries to link.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(archived ${LOCKSTEP_MODULES})
if(LOCKSTEP_HAS_CUDA)
  list(APPEND archived kernels)
endif()
list(TRANSFORM archived REPLACE "(.+)" "$<TARGET_OBJECTS:lockstep_\\1>")
add_library(lockstep_archive STATIC ${archived})
set_target_properties(lockstep_archive PROPERTIES OUTPUT_NAME lockstep EXPORT_NAME lockstep LINKER_LANGUAGE CXX)
target_compile_features(lockstep_archive INTERFACE cxx_std_20)
target_include_directories(lockstep_archive INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# What the archive's objects need, by the names that a linker knows.
set(libraries dnnl spdlog fmt tomlplusplus png turbojpeg xxhash z gomp pthread)
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

install(TARGETS lockstep_main RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS lockstep_archive EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in LockstepConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LockstepConfig.cmake ${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)

set(LOCKSTEP_PC_LIBS "")
foreach(path ${LOCKSTEP_LIBRARY_PATHS})
  string(APPEND LOCKSTEP_PC_LIBS " -L${path} -Wl,-rpath,${path}")
endforeach()
foreach(library ${libraries})
  string(APPEND LOCKSTEP_PC_LIBS " -l${library}")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
