# Compile options of every target, and the function with which folders declare themselves.
add_library(reynard_options INTERFACE)
target_include_directories(reynard_options INTERFACE ${CMAKE_SOURCE_DIR})
# at::parallel_for is silently serial in a file compiled without -fopenmp.
# -Wrestrict: false alarms of g++ 12 inside std::string (GCC bug 105651).
target_compile_options(reynard_options
                       INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-restrict -fopenmp>)
target_link_options(reynard_options INTERFACE -fopenmp)
# Without it, small headers of ATen include the declarations of all operators.
target_compile_definitions(reynard_options INTERFACE AT_PER_OPERATOR_HEADERS)
if(REYNARD_WERROR)
  target_compile_options(reynard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                                  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(REYNARD_SANITIZER STREQUAL "address")
  # libtorch is built with RTTI details that UBSan's vptr check cannot see.
  set(sanitize -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined
               -fno-omit-frame-pointer)
elseif(REYNARD_SANITIZER STREQUAL "thread")
  set(sanitize -fsanitize=thread)
  # libtorch.so exports functions of std::filesystem that call system functions it could not bind here:
  # the library of the compiler comes first.
  set(standard_library_first -Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state)
endif()
foreach(option ${sanitize})
  target_compile_options(reynard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
endforeach()
target_link_options(reynard_options INTERFACE ${sanitize} ${standard_library_first})

# reynard_component(attention): folder -> object target reynard_attention of all its .cpp files
# (sub-folders included), which are a part of libreynard.so.
# Which folder may include which is checked by tests/structure.
function(reynard_component name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/${name}/(.*/)?cuda/")  # these are libreynard_cuda.so
  add_library(reynard_${name} OBJECT ${sources})
  target_link_libraries(reynard_${name} PUBLIC reynard_options torch::core)
endfunction()
