# cmake --install: a tree that can be moved to any machine that has libtorch.
#   bin/reynard     a script that finds libtorch and starts lib/reynard
#   lib/            the program, our libraries and those of the system that they need; RUNPATH $ORIGIN
#   include/, lib/cmake/    headers and the package for find_package(reynard) (examples/library)
#   share/          what is read at run time
# libtorch, CUDA and the C and C++ runtime are the machine's. Of the attention operator alone there is no
# program and nothing that one reads.
set(installed reynard)
foreach(target reynard_cli reynard_cuda)
  if(TARGET ${target})
    list(APPEND installed ${target})
  endif()
endforeach()
set_target_properties(${installed} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${installed} RUNTIME DESTINATION lib LIBRARY DESTINATION lib)

include(CMakePackageConfigHelpers)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_series ${TorchWheel_VERSION})
configure_file(cmake/reynardConfig.cmake.in reynardConfig.cmake @ONLY)
write_basic_package_version_file(reynardConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/reynardConfig.cmake ${CMAKE_BINARY_DIR}/reynardConfigVersion.cmake
              cmake/FindTorchWheel.cmake
        DESTINATION lib/cmake/reynard)

set(left_out "^(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s|gomp)\\.so.*|lib(torch|c10|cu).*)$")
install(CODE "
  set(left_out [==[${left_out}]==])
  set(names)
  foreach(name reynard libreynard.so libreynard_cuda.so)
    if(EXISTS \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/\${name}\")
      list(APPEND names \${name})
    endif()
  endforeach()")
install(SCRIPT cmake/InstallNeededLibraries.cmake)
if(NOT TARGET reynard_cli)
  return()
endif()

install(PROGRAMS cmake/reynard-launcher DESTINATION bin RENAME reynard)
install(FILES python/figures.py DESTINATION share/python)
install(DIRECTORY bench/peers DESTINATION share/bench FILES_MATCHING PATTERN "*.py")
# The JavaScript that draws the figures of report and inspect: made here, since the machine that the tree
# is moved to need not have vl-convert.
install(CODE "
  execute_process(
    COMMAND [==[${TorchWheel_PYTHON}]==] [==[${CMAKE_SOURCE_DIR}/python/figures.py]==] bundle
            \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/vega-embed.js\"
    RESULT_VARIABLE failed)
  if(failed)
    message(WARNING \"install: share/vega-embed.js could not be made; report and inspect of this tree \"
                    \"need vl-convert (scripts/requirements.txt) where they run\")
  endif()")
