# `cpack` in the build folder writes three packages for Debian: foretrain, foretrain-execution with the modules that
# `execute` loads, and python3-foretrain. The CUDA module needs libraries that Debian has not, and stays out.
set(FORETRAIN_MAINTAINER "foretrain maintainers <maintainers@foretrain.example>"
    CACHE STRING "Maintainer of the packages")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME foretrain)
set(CPACK_PACKAGE_VENDOR foretrain)
set(CPACK_PACKAGE_CONTACT ${FORETRAIN_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_CUSTOM_INSTALL_VARIABLES FORETRAIN_PYTHON_FOLDER=lib/python3/dist-packages
                                   FORETRAIN_ZSH_FOLDER=share/zsh/vendor-completions)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME foretrain)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SUGGESTS "foretrain-execution, python3-foretrain")
set(CPACK_DEBIAN_COMMAND_DESCRIPTION "predict LLM pre-training runs: time, memory, cost
A RUN names a model, a cluster and a parallel plan. The command predicts the
time and the memory of a training step, searches for the best plan, simulates
weeks of the run with failures, and compares it with a trace.")
set(CPACK_DEBIAN_EXECUTION_PACKAGE_NAME foretrain-execution)
set(CPACK_DEBIAN_EXECUTION_PACKAGE_DEPENDS "foretrain (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_EXECUTION_PACKAGE_RECOMMENDS "libopenblas0, openmpi-bin")
set(CPACK_DEBIAN_EXECUTION_DESCRIPTION "really run the programs that foretrain predicts
Modules that \"foretrain execute\" loads: ranks as processes of MPI, and
multiplication by oneDNN.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-foretrain)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "predict LLM pre-training runs from Python
The verbs of foretrain as functions of dicts: simulate, search, goodput,
compare, import and export.")

set(CPACK_COMPONENTS_ALL command)
if(TARGET foretrain_mpi OR TARGET foretrain_onednn)
  list(APPEND CPACK_COMPONENTS_ALL execution)
endif()
if(FORETRAIN_HAVE_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python)
  math(EXPR next_minor "${FORETRAIN_PYTHON_MINOR} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS
      "python3 (>= 3.${FORETRAIN_PYTHON_MINOR}), python3 (<< 3.${next_minor})")
endif()

# Debian asks for both in each package.
set(packaged ${PROJECT_BINARY_DIR}/packaged)
set(changed "Thu, 01 Jan 1970 00:00:00 +0000")
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${PROJECT_SOURCE_DIR} log -1 --format=%aD OUTPUT_VARIABLE dated
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(dated)
    set(changed ${dated})
  endif()
endif()
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(name ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  file(WRITE ${packaged}/${name}/changelog
       "foretrain (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * Built from its repository.\n\n"
       " -- ${FORETRAIN_MAINTAINER}  ${changed}\n")
  execute_process(COMMAND gzip -9nf ${packaged}/${name}/changelog)
  install(FILES ${packaged}/${name}/changelog.gz ${PROJECT_SOURCE_DIR}/tools/package/copyright
          DESTINATION share/doc/${name} COMPONENT ${component})
endforeach()
include(CPack)
