# Properties, which need rapidcheck, are a program of their own.
set(suites attention)
if(NOT REYNARD_ATTENTION_ONLY)
  file(GLOB properties CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/properties/*_test.cpp)
  add_executable(attention_properties_test ${properties})
  target_link_libraries(attention_properties_test PRIVATE reynard_test_support)
  list(APPEND suites attention_properties)
endif()

# What depends on the kernels runs once per instruction set that this processor has (the names are
# those of REYNARD_CPU_PATH); the rest runs once. Threads wait without spinning: tests share cores.
set(kernel_tests "*Budget*:ForgettingAttention*:Identities*:Pruning*:LayerCache*:Int8Pages*:*PagedDecode*")
set(cpu_flags "")
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_flags REGEX "^flags" LIMIT_COUNT 1)
endif()
set(cpu_paths portable)
if(cpu_flags MATCHES " avx2 " AND cpu_flags MATCHES " fma ")
  list(APPEND cpu_paths avx2)
endif()
if(cpu_flags MATCHES " avx512f " AND cpu_flags MATCHES " avx512vl ")
  list(APPEND cpu_paths avx512)
endif()
if(cpu_flags MATCHES " avx512_bf16 ")
  list(APPEND cpu_paths avx512_bf16)
endif()
if(cpu_flags MATCHES " amx_bf16 ")
  list(APPEND cpu_paths amx)
endif()

# The exponential by itself, once per instruction set whose vectors it has, compiled as in the kernels
# (below -O2 the compiler forms no fused multiply-adds, and the error is larger).
set(exp2_avx2_options -mavx2 -mfma)
set(exp2_avx512_options ${exp2_avx2_options} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
foreach(isa avx512 avx2 portable)
  set(source ${CMAKE_CURRENT_LIST_DIR}/cpu/exp2_${isa}.cpp)
  target_sources(attention_test PRIVATE ${source})
  set_source_files_properties(
    ${source} PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=fast;-Wno-psabi;-Wno-maybe-uninitialized;${exp2_${isa}_options}")
endforeach()

foreach(suite ${suites})
  add_test(NAME ${suite} COMMAND ${suite}_test --gtest_filter=-${kernel_tests})
  set_tests_properties(${suite} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
  foreach(path ${cpu_paths})
    add_test(NAME ${suite}_${path} COMMAND ${suite}_test --gtest_filter=${kernel_tests})
    set_tests_properties(
      ${suite}_${path} PROPERTIES ENVIRONMENT "REYNARD_CPU_PATH=${path};OMP_WAIT_POLICY=passive")
  endforeach()
endforeach()

add_test(NAME attention_ops COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/attention_ops_test.py
                                    $<TARGET_FILE:reynard>)
# Under torch.compile; on a GPU with REYNARD_TEST_DEVICE=cuda.
add_test(NAME attention_compiled
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/compiled_ops_test.py
                 $<TARGET_FILE:reynard>)
set_tests_properties(attention_compiled PROPERTIES SKIP_RETURN_CODE 77)
# Needs REYNARD_TEST_DEVICE=cuda and a GPU.
add_test(NAME attention_decode_graph
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/decode_graph_test.py
                 $<TARGET_FILE:reynard>)
set_tests_properties(attention_decode_graph PROPERTIES SKIP_RETURN_CODE 77)
# Short rows on the CPU; on a GPU with REYNARD_TEST_DEVICE=cuda a hundred runs.
add_test(NAME attention_equal_bits
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/equal_bits_test.py
                 $<TARGET_FILE:reynard>)
# Needs REYNARD_TEST_DEVICE=cuda and a GPU.
add_test(NAME attention_large_offsets
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/large_offsets_test.py
                 $<TARGET_FILE:reynard>)
set_tests_properties(attention_large_offsets PROPERTIES SKIP_RETURN_CODE 77)
