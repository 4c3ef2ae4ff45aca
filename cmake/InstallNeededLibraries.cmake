# Part of cmake --install, after the targets. `names`: what was installed into lib/; `left_out`: the
# libraries that every machine has or must bring.
set(folder "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib")
foreach(name ${names})
  # Also drops the folders of libtorch on this machine, which came in as linker options.
  file(RPATH_SET FILE ${folder}/${name} NEW_RPATH "$ORIGIN")
endforeach()
if(EXISTS ${folder}/reynard)
  set(program EXECUTABLES ${folder}/reynard)
endif()
file(
  GET_RUNTIME_DEPENDENCIES
  ${program}
  LIBRARIES ${folder}/libreynard.so
  RESOLVED_DEPENDENCIES_VAR needed
  UNRESOLVED_DEPENDENCIES_VAR missing
  CONFLICTING_DEPENDENCIES_PREFIX again # also in the tree, from an installation before
  PRE_EXCLUDE_REGEXES ${left_out})
if(missing)
  message(FATAL_ERROR "install: libraries not found on this machine: ${missing}")
endif()
foreach(name ${again_FILENAMES})
  list(APPEND needed ${again_${name}})
endforeach()
foreach(library ${needed})
  cmake_path(IS_PREFIX folder "${library}" NORMALIZE is_ours)
  if(NOT is_ours)
    file(INSTALL ${library} DESTINATION ${CMAKE_INSTALL_PREFIX}/lib FOLLOW_SYMLINK_CHAIN)
  endif()
endforeach()
