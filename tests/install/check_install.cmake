# cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -P check_install.cmake
# Installs a build to WORK_DIR, then builds and runs the consumer beside this file, and the example, against it.
function(step)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
# What was installed must not lean on the build's environment.
step("${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH "${WORK_DIR}/prefix/bin/kvant" --version)
file(GLOB_RECURSE copied LIST_DIRECTORIES true RELATIVE "${WORK_DIR}/prefix/lib/kvant" "${WORK_DIR}/prefix/lib/kvant/*")
foreach(name IN LISTS copied)
  if(NOT name MATCHES "^libdnnl\\.so[.0-9]*$")
    message(FATAL_ERROR "lib/kvant holds ${name}")
  endif()
endforeach()
step("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE_DIR}" -B "${WORK_DIR}/build" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
step("${WORK_DIR}/build/consumer")
step("${CMAKE_COMMAND}" -G Ninja -S "${SOURCE_DIR}/../../examples" -B "${WORK_DIR}/example"
  "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix")
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/example")
step("${WORK_DIR}/example/attention")
