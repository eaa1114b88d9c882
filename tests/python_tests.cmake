# kvant_pytest_folder(cli LABEL fast): one ctest entry per test_*.py, run by the Python that tools/setup.sh installs.
set(KVANT_PYTHON "${KVANT_DEPS_PREFIX}/bin/python")
execute_process(COMMAND "${KVANT_PYTHON}" -c "import pytest, numpy" RESULT_VARIABLE KVANT_NO_PYTEST ERROR_QUIET)
if(KVANT_NO_PYTEST)
  message(WARNING "Python tests are left out: ${KVANT_PYTHON} has no pytest and numpy; run tools/setup.sh")
endif()
function(kvant_pytest_folder folder)
  cmake_parse_arguments(arg "" "LABEL" "" ${ARGN})
  if(KVANT_NO_PYTEST)
    return()
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${folder}/test_*.py)
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WE)
    string(REPLACE "/" "." name "${folder}/${name}")
    add_test(NAME "${name}" COMMAND "${KVANT_PYTHON}" -m pytest -q -rs -p no:cacheprovider
      --rootdir "${CMAKE_SOURCE_DIR}" --confcutdir "${CMAKE_SOURCE_DIR}/tests" "${file}"
      WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    set_tests_properties("${name}" PROPERTIES LABELS ${arg_LABEL} TIMEOUT 900
      ENVIRONMENT "KVANT_BINARY=$<TARGET_FILE:kvant>;KVANT_SOURCE_DIR=${CMAKE_SOURCE_DIR}")
  endforeach()
endfunction()
