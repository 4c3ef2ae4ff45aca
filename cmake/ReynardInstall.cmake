# cmake --install: a tree that can be moved to any machine that has libtorch.
#   bin/reynard     a script that finds libtorch and starts lib/reynard
#   lib/            the program, our libraries and those of the system that they need; RUNPATH $ORIGIN
#   share/          what is read at run time
# libtorch, CUDA and the C and C++ runtime are the machine's.
set(installed reynard_cli reynard)
if(TARGET reynard_cuda)
  list(APPEND installed reynard_cuda)
endif()
set_target_properties(${installed} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${installed} RUNTIME DESTINATION lib LIBRARY DESTINATION lib)
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

set(left_out "^(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s|gomp)\\.so.*|lib(torch|c10|cu).*)$")
install(CODE "
  set(left_out [==[${left_out}]==])
  set(names reynard libreynard.so)
  if(EXISTS \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/libreynard_cuda.so\")
    list(APPEND names libreynard_cuda.so)
  endif()")
install(SCRIPT cmake/InstallNeededLibraries.cmake)
