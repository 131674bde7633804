# CPack: the component `program` as a Debian package, of a build without CUDA. tools/package makes it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_CONTACT "The authors of Lockstep <lockstep@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains segmentation networks with synchronized BatchNorm (CPU only)")
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
    "Trains semantic-segmentation networks and image classifiers on all devices of
one workstation from one process, with per-device, synchronized and Ghost
BatchNorm, and shows what the difference is.
.
This build is for the CPU only: its devices are virtual ones. GPUs need a
build from source, where the CUDA Toolkit and cuDNN are. The processor must
have AVX2 (x86-64-v3).")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_times.cmake)
include(CPack)
