# cpp-httplib as Debian and Ubuntu build it: a shared library, whose headers need the definitions that it was
# compiled with (the layout of its types depends on them). Target Httplib::httplib.
find_path(Httplib_INCLUDE httplib.h)
find_library(Httplib_LIBRARY cpp-httplib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Httplib REQUIRED_VARS Httplib_LIBRARY Httplib_INCLUDE
  REASON_FAILURE_MESSAGE "install the package libcpp-httplib-dev")
if(Httplib_FOUND AND NOT TARGET Httplib::httplib)
  add_library(Httplib::httplib UNKNOWN IMPORTED)
  set_target_properties(
    Httplib::httplib
    PROPERTIES IMPORTED_LOCATION ${Httplib_LIBRARY}
               INTERFACE_INCLUDE_DIRECTORIES ${Httplib_INCLUDE}
               INTERFACE_COMPILE_DEFINITIONS
               "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT")
endif()
