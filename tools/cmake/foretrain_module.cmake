# foretrain_module(NAME SOURCES ... HEADERS ... DEPENDS ...): one static library a folder.
function(foretrain_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(foretrain_${name} STATIC ${ARG_SOURCES})
  add_library(foretrain::${name} ALIAS foretrain_${name})
  target_sources(
    foretrain_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_compile_features(foretrain_${name} PUBLIC cxx_std_20)
  set_target_properties(
    foretrain_${name} PROPERTIES CXX_EXTENSIONS OFF VERIFY_INTERFACE_HEADER_SETS ON EXPORT_NAME
                                                                                   ${name}
                                  # modules that are loaded at run time are made of them
                                  POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(
    foretrain_${name} PUBLIC ${ARG_DEPENDS} PRIVATE $<BUILD_INTERFACE:foretrain_warnings>
                                                   ${ARG_PRIVATE_DEPENDS})
  install(TARGETS foretrain_${name} EXPORT foretrain_targets
          ARCHIVE COMPONENT development
          FILE_SET HEADERS DESTINATION include/foretrain COMPONENT development)
endfunction()
