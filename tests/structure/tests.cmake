add_test(NAME structure COMMAND structure_test)

# Headers stand alone: each is compiled by itself, as part of the build, those of the GPU only where its
# toolkit is. Sources are compiled six at a time, so that including its own header first shows nothing.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
     ${CMAKE_SOURCE_DIR}/reynard/*.h ${CMAKE_SOURCE_DIR}/cli/*.h ${CMAKE_SOURCE_DIR}/bench/*.h)
if(NOT REYNARD_CUDA)
  list(FILTER headers EXCLUDE REGEX "/cuda/|/cuda_(launch|limits).h$")
endif()
foreach(header ${headers})
  string(REPLACE "/" "_" stem ${header})
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/${stem}.cpp
       CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
  list(APPEND header_sources ${CMAKE_CURRENT_BINARY_DIR}/headers/${stem}.cpp)
endforeach()
if(NOT REYNARD_SANITIZER)
  add_library(headers_stand_alone OBJECT ${header_sources})
  target_link_libraries(headers_stand_alone PRIVATE reynard_options reynard CLI11::CLI11)
  if(REYNARD_CUDA)
    target_link_libraries(headers_stand_alone PRIVATE CUDA::cudart)
  endif()
  target_compile_options(headers_stand_alone PRIVATE -O0)
  set_target_properties(headers_stand_alone PROPERTIES UNITY_BUILD OFF)
endif()

if(NOT REYNARD_SANITIZER)
  add_test(NAME install COMMAND ${CMAKE_CURRENT_LIST_DIR}/install_test ${CMAKE_COMMAND}
                                ${CMAKE_BINARY_DIR} ${TorchWheel_PYTHON})
endif()
