# find_package(foretrain): libraries foretrain::base, ::sim, ..., their headers, and the presets.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/foretrain)
install(EXPORT foretrain_targets NAMESPACE foretrain:: DESTINATION ${package_folder}
        COMPONENT development)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/foretrain-config.cmake.in
  ${PROJECT_BINARY_DIR}/foretrain-config.cmake
  INSTALL_DESTINATION ${package_folder}
  PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/foretrain-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/foretrain-config.cmake
              ${PROJECT_BINARY_DIR}/foretrain-config-version.cmake DESTINATION ${package_folder}
        COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs
        DESTINATION ${CMAKE_INSTALL_DATADIR}/foretrain
        COMPONENT development
        FILES_MATCHING
        PATTERN "*.json"
        PATTERN "README.md")
if(PROJECT_IS_TOP_LEVEL)
  include(tools/cmake/package.cmake)
endif()
