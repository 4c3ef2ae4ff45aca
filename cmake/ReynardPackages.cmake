# What the project needs beyond libtorch: packages of the system (scripts/debian-packages.txt). The attention
# operator alone needs none of them but GoogleTest; it takes the headers of fmt that the torch wheel carries.
find_package(TorchWheel 2.11 REQUIRED)
find_package(Threads REQUIRED)
if(REYNARD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(REYNARD_ATTENTION_ONLY)
  target_compile_definitions(reynard_options INTERFACE FMT_HEADER_ONLY)
  return()
endif()

find_package(nlohmann_json 3.11 REQUIRED)
find_package(tomlplusplus 3.3 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(fmt REQUIRED)
find_package(Httplib REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
if(REYNARD_TESTS)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
  find_path(RAPIDCHECK_INCLUDE rapidcheck.h REQUIRED)
endif()
target_link_libraries(reynard_options INTERFACE nlohmann_json::nlohmann_json
                                                tomlplusplus::tomlplusplus fmt::fmt)
# The wheel's fmt is another version, whose headers would shadow those of the fmt library that we link:
# a folder that holds nothing but the system's fmt comes first.
find_path(FMT_INCLUDE fmt/core.h REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/system_fmt)
file(CREATE_LINK ${FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/system_fmt/fmt SYMBOLIC)
target_include_directories(reynard_options BEFORE INTERFACE ${CMAKE_BINARY_DIR}/system_fmt)
