# cmake -DWORK=<folder> -P floors_test.cmake: floors.cmake must accept a lawful tree and catch each planted
# fault.
cmake_minimum_required(VERSION 3.25)

function(expect outcome words file text)
  file(REMOVE_RECURSE ${WORK})
  file(WRITE ${WORK}/sim/base/units.h "#pragma once\n")
  file(WRITE ${WORK}/${file} "${text}\n")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -DROOT=${WORK} -P ${CMAKE_CURRENT_LIST_DIR}/floors.cmake
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if((outcome STREQUAL "accept" AND NOT result EQUAL 0) OR (outcome STREQUAL "refuse" AND result EQUAL
                                                                                          0))
    message(FATAL_ERROR "expected to ${outcome} ${file} with ${text}, but: ${output}")
  endif()
  string(FIND "${output}" "${words}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected \"${words}\" in: ${output}")
  endif()
endfunction()

expect(accept "in order" models/a.cpp "#include \"sim/program/program.h\"")
expect(accept "in order" executor/a.cu "#include \"hardware/profile.h\"")
expect(refuse "models/a.cpp" models/a.cpp "#include \"hardware/profile.h\"")
expect(refuse "hardware/a.h" hardware/a.h "#  include \"models/plan/plan.h\"")
expect(refuse "traces/a.h" traces/a.h "#include \"models/plan/plan.h\"")
expect(refuse "executor/a.cpp" executor/a.cpp "#include \"traces/chrome_trace.h\"")
expect(refuse "sim/base/a.h" sim/base/a.h "#include \"sim/program/program.h\"")
expect(refuse "sim/cost/a.h" sim/cost/a.h "#include \"sim/engine/replay.h\"")
expect(refuse "tools/a.cpp" tools/a.cpp "#include \"tests/sample_timeline.h\"")
expect(refuse "from the project's root" models/a.cpp "#include \"plan.h\"")
expect(refuse "no floor" sim/extra/a.h "#pragma once")
file(REMOVE_RECURSE ${WORK})
