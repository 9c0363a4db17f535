# What `cmake --install` lays down: header, both libraries, the command, weft.pc and the CMake package.
# Both descriptions find the prefix from where they lie, so an installed tree may be moved.
# A wheel (SKBUILD) holds the same tree inside the package, the command among the scripts, and the PyTorch binding.
include(CMakePackageConfigHelpers)

set(WEFT_COMMAND_DIR ${CMAKE_INSTALL_BINDIR})
if(SKBUILD)
  set(WEFT_COMMAND_DIR ${SKBUILD_SCRIPTS_DIR})
  install(TARGETS weft_torch LIBRARY DESTINATION .)
  # Wheels have no symbolic links. The library lies there once, under its soname, and libweft.so is a line for the linker.
  set_target_properties(weft_shared PROPERTIES VERSION ${WEFT_SERIES})
  set(WEFT_NAMELINK NAMELINK_SKIP)
  file(WRITE ${CMAKE_BINARY_DIR}/wheel/libweft.so "INPUT(libweft.so.${WEFT_SERIES})\n")
  install(FILES ${CMAKE_BINARY_DIR}/wheel/libweft.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set_target_properties(weft_shared PROPERTIES EXPORT_NAME weft)
install(TARGETS weft_shared weft_static EXPORT weft_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${WEFT_NAMELINK}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/include/weft.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET weft)
  install(TARGETS weft RUNTIME DESTINATION ${WEFT_COMMAND_DIR})
endif()

set(WEFT_PKGCONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH WEFT_PC_TO_PREFIX /prefix/${WEFT_PKGCONFIG_DIR} /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/weft.pc.in ${CMAKE_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/weft.pc DESTINATION ${WEFT_PKGCONFIG_DIR})

set(WEFT_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/weftConfig.cmake.in ${CMAKE_BINARY_DIR}/weftConfig.cmake
  INSTALL_DESTINATION ${WEFT_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake DESTINATION ${WEFT_CMAKE_DIR})
install(EXPORT weft_targets FILE weftTargets.cmake NAMESPACE weft:: DESTINATION ${WEFT_CMAKE_DIR})
