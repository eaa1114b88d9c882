# `cmake --install`: the program, and the attention library with its public headers and a CMake package that gives
# kvant::core and kvant::attn.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvant")

install(TARGETS kvant RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS kvant_core kvant_attn EXPORT kvant_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/kvant/core" "${CMAKE_SOURCE_DIR}/include/kvant/attn"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvant")
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/kvant")
install(EXPORT kvant_targets NAMESPACE kvant:: DESTINATION "${package_dir}")
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/kvant-config.cmake.in" kvant-config.cmake
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(kvant-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/kvant-config.cmake" "${CMAKE_BINARY_DIR}/kvant-config-version.cmake"
  DESTINATION "${package_dir}")

# oneDNN is not a system library: the program takes a copy with it.
get_target_property(dnnl_library DNNL::dnnl IMPORTED_LOCATION_RELEASE)
if(NOT dnnl_library)
  get_target_property(dnnl_library DNNL::dnnl IMPORTED_LOCATION)
endif()
get_filename_component(dnnl_directory "${dnnl_library}" DIRECTORY)
# Not as a directory, which would bring along the empty folders of all its neighbours.
file(GLOB dnnl_files "${dnnl_directory}/libdnnl.so*")
install(FILES ${dnnl_files} DESTINATION "${CMAKE_INSTALL_LIBDIR}/kvant")
set_target_properties(kvant PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/kvant")
